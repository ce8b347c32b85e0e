"""Readers of other labs' recordings, and a simulator of attempted speech.

Both write session files, which the core reads. Stands on `cortext`.

Begin with:

- `readers.recording`: the form in which every reader returns a recording.
- `readers.t12`: the reader of one published format, to copy; each format has a file.
- `readers.mapped.mapping`: mapping files, by which NWB and MATLAB files of any lab are read.
- `readers.importing`: a recording, written as session files.
- `simulate.write`: the simulator, from sentences to session files.
- `demo`: the whole path with one call.
"""

import cortext  # noqa: F401  # it prepares the threads of libraries loaded later
