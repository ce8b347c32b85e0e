import json
from pathlib import Path

import pytest
from matplotlib.image import imread

from cortext.cli import run
from cortext.decoding import DecoderOptions
from cortext.errors import DataError
from cortext_bench.decoder.chosen import ChosenSettings, points, read_settings, write_settings
from cortext_bench.decoder.compare import DecoderBenchSettings, oracle, ratios
from cortext_bench.decoder.searcher import searcher
from cortext_bench.decoder.tuning import Tried

POINT = {
    "settings", "utterances", "ms_per_frame", "ms_per_frame_p99", "ms_per_frame_mean", "ms_per_nonblank_frame",
    "cpu_ms_per_frame", "wer", "wer_ci95", "oracle_wer", "nbest",
}  # fmt: skip
OURS = {
    "frame_ms_median", "frame_ms_p99", "frame_ms_worst", "frame_cpu_ms_worst", "end_ms_worst",
    "strained_settings", "strained_frame_cpu_ms_worst",
    "strained_frame_ms_worst", "strained_end_ms_worst", "two_threads_speedup",
}  # fmt: skip


def test_the_oracle_takes_the_best_sentence_of_each_list():
    lists = [["a b c", "a x c"], ["d", "d e"]]
    assert oracle(["a x y", "d e"], lists) == pytest.approx(1 / 5)
    assert oracle([], []) is None


def test_equal_is_the_fastest_at_the_worse_of_both_best():
    slow, fast, bad = (
        Tried({"beam": 3}, 0.20, 9.0),
        Tried({"beam": 2}, 0.25, 4.0),
        Tried({"beam": 1}, 0.40, 1.0),
    )
    theirs = Tried({"size": 1}, 0.25, 50.0)
    found = points(
        {"cortext": [slow, fast, bad], "flashlight": [theirs], "kaldi": [Tried({"k": 1}, 0.3, 2.0)]}
    )
    assert found["cortext"] == {"best": {"beam": 3}, "equal": {"beam": 2}, "near": {"beam": 2}}
    assert found["flashlight"] == {"best": {"size": 1}, "equal": {"size": 1}, "near": {"size": 1}}
    assert found["kaldi"] == {"best": {"k": 1}, "equal": {"k": 1}, "near": {"k": 1}}


def test_near_may_have_one_and_a_half_points_more():
    ours = [Tried({"beam": 3}, 0.2, 9.0), Tried({"beam": 2}, 0.214, 4.0)]
    ours.append(Tried({"beam": 1}, 0.216, 1.0))
    found = points({"cortext": ours})["cortext"]
    assert (found["equal"], found["near"]) == ({"beam": 3}, {"beam": 2})


def test_ratios_are_theirs_over_ours():
    def decoder(best, equal, near=0.01):
        times = {"best": best, "equal": equal, "near": near}
        return {
            "points": {
                point: {"ms_per_frame": ms, "cpu_ms_per_frame": ms / 2}
                for point, ms in times.items()
            }
        }

    found = ratios(
        {"cortext": decoder(0.1, 0.02), "flashlight": decoder(1.0, 0.4), "kaldi": decoder(0.3, 0.3)}
    )
    assert found["ratio"] == pytest.approx(20)
    assert found["ratios"]["flashlight"]["best"] == pytest.approx(10)
    assert found["ratios"]["kaldi"]["equal"] == pytest.approx(15)
    assert found["ratio_cpu"] == pytest.approx(20)
    assert found["ratio_near_cpu"] == pytest.approx(40)
    assert ratios({"flashlight": decoder(1, 1)}) == {
        "ratio": None, "ratio_cpu": None, "ratio_near_cpu": None, "ratios": {},
    }  # fmt: skip
    assert ratios({"cortext": decoder(1, 1)})["ratio"] is None


def test_tuning_one_search_again_keeps_the_others(tmp_path):
    path = tmp_path / "settings.json"
    write_settings(
        path,
        {"cortext": [Tried({"beam": 3}, 0.2, 9.0)], "flashlight": [Tried({"size": 1}, 0.2, 50.0)]},
        {},
    )
    write_settings(path, {"cortext": [Tried({"beam": 2}, 0.2, 1.0)]}, {})
    found = read_settings(path)
    assert found["cortext"].points["best"] == {"beam": 2}
    assert found["flashlight"].points["best"] == {"size": 1}
    assert found["cortext"].frontier == [{"beam": 2}]


def test_settings_are_measured_once():
    narrow, wide = {"beam": 1}, {"beam": 9}
    chosen = ChosenSettings({"best": wide, "equal": wide, "near": narrow}, [narrow, wide])
    assert chosen.different() == [wide, narrow]


def test_without_tuned_settings_the_way_out_is_named(tmp_path):
    with pytest.raises(DataError, match="--tune"):
        read_settings(tmp_path / "none.json")


def test_all_searches_run_by_default():
    assert DecoderBenchSettings().names[0] == "cortext"
    assert {"flashlight", "kaldi", "pyctcdecode"} <= set(DecoderBenchSettings().names)


def arguments(lm_dir, trials_file, tmp_path, *more):
    base = [
        "bench",
        "decoder",
        "--lm",
        str(lm_dir),
        "--trials",
        str(trials_file),
        "--cache",
        str(tmp_path / "cache"),
    ]
    settings = ["--settings", str(tmp_path / "settings.json")]
    return [*base, *settings, "--tuning-trials", "2", "--repeats", "2", "--only", "cortext", *more]


def test_the_command_compares_what_is_installed(lm_dir, trials_file, tmp_path, capsys):
    pytest.importorskip("flashlight.lib.text")
    out = tmp_path / "result.json"
    picture = tmp_path / "pictures" / "frontier.png"
    more = ("--only", "flashlight", "--json", "--out", str(out), "--plot", str(picture))
    assert run([*arguments(lm_dir, trials_file, tmp_path, *more), "--tune"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result == json.loads(out.read_text())
    assert {"ratio", "ratios", "decoders", "missing", "ours", "input", "lm", "provenance"} <= set(
        result
    )
    assert result["missing"] == {}
    assert set(result["ours"]) == OURS
    assert set(result["decoders"]) == {"cortext", "flashlight"}
    for decoder in result["decoders"].values():
        assert decoder["version"]
        assert decoder["load_s"] > 0
        assert decoder["memory"]["peak_rss_mb"] > decoder["memory"]["before_pss_mb"] > 0
        for point in decoder["points"].values():
            assert set(point) == POINT
            assert point["ms_per_frame_p99"] >= point["ms_per_frame"] > 0
            assert point["oracle_wer"] <= point["wer"]
        times = [point["cpu_ms_per_frame"] for point in decoder["frontier"]]
        assert times == sorted(times)
        assert decoder["points"]["best"] in decoder["frontier"]
    default = result["decoders"]["cortext"]["points"]["default"]["settings"]
    assert default["sil_cost"] == DecoderOptions().sil_cost
    assert imread(picture).shape[1] > 1000
    assert result["input"]["utterances"] == result["input"]["tuning_utterances"] == 6
    theirs, ours = (
        result["decoders"][name]["points"]["equal"] for name in ("flashlight", "cortext")
    )
    assert result["ratio"] == pytest.approx(theirs["ms_per_frame"] / ours["ms_per_frame"])
    # The settings were kept: the next run need not tune.
    kept = json.loads((tmp_path / "settings.json").read_text())
    for name in ("cortext", "flashlight"):
        n_sizes = len(searcher(name).sizes)  # the two trials may be among them
        assert n_sizes <= len(kept["trials"][name]) <= 2 + n_sizes
    assert run(arguments(lm_dir, trials_file, tmp_path)) == 0
    assert "ms/frame" in capsys.readouterr().out


def test_the_command_refuses_what_does_not_go_together(lm_dir, trials_file, tmp_path, capsys):
    assert run(["bench", "decoder", "--run", "runs/x"]) == 2
    assert "--run and --data go together" in capsys.readouterr().err
    assert run(arguments(lm_dir, trials_file, tmp_path)) == 2
    assert "--tune" in capsys.readouterr().err


ROOT = Path(__file__).resolve().parents[3]


def test_the_default_options_are_near_fitted_ones_as_the_guide_says():
    study = json.loads((ROOT / "benchmarks" / "results" / "decoder_defaults.json").read_text())
    guide = (ROOT / "docs/measured/decoder-options.md").read_text(encoding="utf-8")
    assert study["now"] == {name: getattr(DecoderOptions(), name) for name in study["now"]}
    for name, row in study["materials"].items():
        less = row["now_less_fitted"]
        cells = [f"{100 * row['wer'][side]:.1f}" for side in ("before", "now", "fitted")]
        span = " to ".join(f"{100 * bound:+.1f}" for bound in less["ci95"])
        assert f"| {' | '.join(cells)} | {100 * less['wer']:+.1f} ({span}) |" in guide
        if "blank alone" not in name:
            assert less["wer"] <= 0.03
    assert study["materials"]["demo"]["now_less_before"]["wer"] <= 0.005


def test_the_guide_has_the_frontier_that_was_measured():
    result = json.loads(
        (ROOT / "benchmarks" / "results" / "decoder_frontier_pseudo.json").read_text()
    )
    guide = (ROOT / "docs/measured/search-frontier.md").read_text(encoding="utf-8")
    level = result["decoders"]["flashlight"]["points"]["best"]["cpu_ms_per_frame"]
    for name in ("cortext", "flashlight"):
        for point in result["decoders"][name]["frontier"]:
            ms, wer = point["cpu_ms_per_frame"], 100 * point["wer"]
            cells = f"| {ms:.3f} | {wer:.1f} % | {level / ms:.1f} |"
            assert any(
                line.startswith(f"| {name} ") and cells in line for line in guide.split("\n")
            )
