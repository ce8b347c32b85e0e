"""A simulator of attempted speech: sentences in, session files of neural features out.

Sentence -> phonemes -> durations (`speech`) -> articulators (`articulators`) -> electrodes that
drift from day to day (`brain`) -> threshold crossings and spike-band power (`neural`) -> session
files (`write`). See docs/inside/simulator.md.
"""

from cortext_data.simulate.config import PRESETS, SimulatorConfig, preset_config
from cortext_data.simulate.write import simulate

__all__ = ["PRESETS", "SimulatorConfig", "preset_config", "simulate"]
