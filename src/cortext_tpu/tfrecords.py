"""Trials as TFRecords, which TensorFlow reads without this package.

A record is a `tf.train.Example` of one trial, with the features

    features   bytes, float16 [T, C] little-endian, a bin after the other       shape    int64 [2]:
    T, C
    labels     int64 [U], tokens of the data's inventory                        session  bytes, its
    name
    day        int64, position of the session in the data set's list            block, trial   int64
    sentence, corpus   bytes

where `labels`, `sentence` and `corpus` are absent if they are withheld. Files are
`<split>-<number>.tfrecord`; an index beside them says where the features of each trial begin, so
that batches may take trials in any order.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from cortext.data.trial import Trial
from cortext.extras import need

FILE_BYTES = 1 << 28
"""A file ends with the record that brings it to this size."""
_BEFORE = 12
"""Bytes before a record's content: its length and that number's checksum."""
_AFTER = 4
"""Bytes after it: the checksum of the content."""


class RecordFiles:
    """The TFRecord files of a split, being written.

    It needs TensorFlow, and raises OSError where it cannot write.

    Attributes:
        sizes: Bytes of each file by name; complete after `close`.
        records: The number of the file, and the byte where the features begin, of each trial.
    """

    def __init__(self, folder: Path, split: str) -> None:
        self._tf = need("tensorflow", "tensorflow")
        self._folder = folder
        self._split = split
        self._writer: Any = None
        self.sizes: dict[str, int] = {}
        self.records: list[tuple[int, int]] = []

    def write(self, trial: Trial, rows_TC: np.ndarray, day: int) -> None:
        """Add a trial.

        Args:
            trial: Trial, for its labels and names.
            rows_TC: Features of the trial, float16 [T, C].
            day: Number of its session among the packed ones.
        """
        features = rows_TC.astype("<f2", copy=False).tobytes()
        record = _example(self._tf, trial, rows_TC.shape, features, day).SerializeToString(
            deterministic=True
        )
        with _os_errors(self._tf):
            if self._writer is None:
                name = f"{self._split}-{len(self.sizes):05d}.tfrecord"
                self._writer = self._tf.io.TFRecordWriter(str(self._folder / name))
                self.sizes[name] = 0
            self._writer.write(record)
        name, size = self.sizes.popitem()
        self.records.append((len(self.sizes), size + _BEFORE + record.index(features)))
        self.sizes[name] = size + _BEFORE + len(record) + _AFTER
        if self.sizes[name] >= FILE_BYTES:
            self.close()

    def close(self) -> None:
        """End the last file."""
        if self._writer is not None:
            with _os_errors(self._tf):
                self._writer.close()
            self._writer = None


def _example(tf: Any, trial: Trial, shape: tuple[int, ...], features: bytes, day: int) -> Any:
    numbers = {"shape": shape, "day": [day], "block": [trial.block], "trial": [trial.trial]}
    texts = {"session": trial.session, "sentence": trial.sentence, "corpus": trial.corpus}
    content = {"features": tf.train.Feature(bytes_list=tf.train.BytesList(value=[features]))}
    if trial.phoneme_ids is not None:
        numbers["labels"] = trial.phoneme_ids.tolist()
    for name, values in numbers.items():
        content[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=values))
    for name, text in texts.items():
        if text is not None:
            content[name] = tf.train.Feature(bytes_list=tf.train.BytesList(value=[text.encode()]))
    return tf.train.Example(features=tf.train.Features(feature=content))


@contextmanager
def _os_errors(tf: Any) -> Iterator[None]:
    """Turn what TensorFlow could not write within the context into an OSError."""
    try:
        yield
    except tf.errors.OpError as error:
        raise OSError(error.message) from None
