# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time

import pytest

from fl_dispatch import ConfigError, Report, SelectionPolicy, load_config
from fl_dispatch.report_file import wait_for_report


@pytest.fixture
def one(manager, impl):
    return manager(impl("a"), impl("b", available=lambda: "no SDK", priority=120))


@pytest.fixture
def report(one, tmp_path):
    def build(manager=one, path="report.json", **fields):
        config = load_config("T_", {"T_REPORT": str(tmp_path / path)} if path else {}, vendors=[])
        return Report(manager, "engine 1.0", config, **fields)

    return build


@pytest.fixture
def bind(one, make_layer):
    kept = []

    def bind(label="Silu", calls=0, op="silu_and_mul"):
        layer = make_layer()
        site = one.bind(op, layer, label=label)
        site.calls = calls
        kept.append((layer, site))
        return site

    return bind


def test_layers_of_one_class_and_implementation_are_one_row(report, bind):
    for calls in (3, 4):
        bind(calls=calls)
    (row,) = report().rows()
    assert row == {
        "operator": "silu_and_mul",
        "layer_class": "Silu",
        "implementation": "vendor.a",
        "why": "first able in the order, by token vendor",
        "passed_over": [{"implementation": "vendor.b", "reason": "no SDK"}],
        "layers": 2,
        "calls": 7,
        "graph_sites": 0,
        "served_by_others": {},
    }


def test_classes_and_operators_have_rows_of_their_own(report, bind):
    bind("B"), bind("A"), bind("A", op="rms_norm")
    assert [(row["operator"], row["layer_class"]) for row in report().rows()] == [
        ("rms_norm", "A"), ("silu_and_mul", "A"), ("silu_and_mul", "B"),
    ]  # fmt: skip


def test_a_device_on_which_only_the_reference_is_left_is_told_how_to_keep_the_frameworks_kernels(
    manager, impl, make_layer
):
    here = manager(impl("a", available=lambda: "no SDK"))
    here.configure(device_type="cuda")
    layer = make_layer()
    # Kept alive; nothing was passed over for the second.
    _sites = [here.bind(op, layer, label="Layer") for op in ("silu_and_mul", "gemma_rms_norm")]
    report = Report(here, "engine 1.0", load_config("T_", {}, vendors=[]))
    note = (
        "nothing but PyTorch is left for gemma_rms_norm, silu_and_mul; engine's own kernels may be faster: "
        "T_PREFER=flagos,vendor,native leaves such layers to them"
    )
    assert report.as_dict()["notes"] == [note]
    assert f"\nNote: {note}." in report.table()
    here.configure(policy=SelectionPolicy(prefer="vendor:a", per_op={"gemma_rms_norm": "reference"}))
    (note,) = report.as_dict()["notes"]
    assert note.startswith("nothing but PyTorch is left for silu_and_mul; ")
    assert "T_PREFER=vendor:a,native leaves" in note
    here.configure(policy=SelectionPolicy(prefer="reference"))  # asked for
    assert report.as_dict()["notes"] == []
    here.configure(policy=SelectionPolicy(), device_type="cpu")
    assert report.as_dict()["notes"] == []


def test_an_implementation_that_is_not_the_reference_has_no_such_note_whatever_was_passed_over(report, bind, one):
    bind()
    one.configure(device_type="cuda")
    found = report().as_dict()
    assert found["operators"][0]["passed_over"]
    assert found["notes"] == []


def test_places_in_graphs_are_added_up_over_the_layers(report, bind):
    for graphs in (1, 3):
        bind().graphs = graphs
    assert report().rows()[0]["graph_sites"] == 4


def test_calls_before_a_policy_change_stay_with_the_implementation_of_then(report, bind, one):
    site = bind(calls=5)
    one.configure(policy=SelectionPolicy(prefer="reference"))
    site.calls = 2
    rows = {row["implementation"]: row for row in report().rows()}
    assert (rows["vendor.a"]["calls"], rows["vendor.a"]["layers"]) == (5, 0)
    assert rows["vendor.a"]["why"] == "in effect until the selection changed"
    assert (rows["reference"]["calls"], rows["reference"]["layers"]) == (2, 1)


def test_an_implementation_that_comes_back_keeps_its_calls(report, bind, one):
    site = bind(calls=5)
    one.configure(policy=SelectionPolicy(prefer="reference"))
    one.configure(policy=SelectionPolicy())
    site.calls = 2
    (row,) = report().rows()
    assert (row["implementation"], row["calls"]) == ("vendor.a", 7)


def test_calls_served_by_others_are_with_the_one_that_did_not_serve(report, bind, one):
    site = bind(calls=5)
    site.fallbacks[("vendor.a", "reference")] = 2
    one.configure(policy=SelectionPolicy(prefer="reference"))
    rows = {row["implementation"]: row["served_by_others"] for row in report().rows()}
    assert rows == {"vendor.a": {"reference": 2}, "reference": {}} or rows["vendor.a"] == {"reference": 2}
    assert rows["reference"] == {}


def test_a_single_call_of_the_framework_is_named_with_its_reason(report, bind):
    site = bind(calls=5)
    site.passed_on("no key")
    site.passed_on("no key")
    assert report().rows()[0]["served_by_others"] == {"the framework, no key": 2}
    assert "2 by the framework, no key" in report().table()


def test_places_without_a_layer_have_no_row(report, one, layer, x):
    held = one.resolve_op("silu_and_mul")
    held(layer, x), one.call_op("silu_and_mul", layer, x)
    assert report().rows() == []


def test_layers_left_to_the_framework_are_counted_by_reason(report):
    left = [
        ("rms_norm", "RMSNorm", "no weight"),
        ("rms_norm", "RMSNorm", "no weight"),
        ("rms_norm", "RMSNorm", "forced"),
    ]
    assert report(left=lambda: left).left_to_framework() == [
        {"operator": "rms_norm", "layer_class": "RMSNorm", "reason": "forced", "layers": 1},
        {"operator": "rms_norm", "layer_class": "RMSNorm", "reason": "no weight", "layers": 2},
    ]


def test_the_table_shows_choice_reason_and_what_was_passed_over(report, bind):
    bind()
    bind()
    left = [("rms_norm", "RMSNorm", "no weight")]
    assert report(rank=1, role="scheduler", left=lambda: left).table().splitlines() == [
        "fl-dispatch on engine 1.0, scheduler rank 1, cpu",
        "operator      layer class  layers  implementation     why                                       passed over",
        "------------  -----------  ------  -----------------  ----------------------------------------  ----------------",
        "silu_and_mul  Silu         2       vendor.a           first able in the order, by token vendor  vendor.b: no SDK",
        "rms_norm      RMSNorm      1       (framework's own)  no weight                                 -",
    ]


def test_the_file_has_the_rank_in_its_name_and_everything_inside(report, bind, tmp_path):
    bind(calls=3)
    one = report(rank=2, role="scheduler")
    one.fact("seam", "MultiPlatformOp.dispatch_forward")
    path = one.write()
    assert path == tmp_path / "report.rank2.json"
    content = json.loads(path.read_text())
    assert content["schema_version"] == 1
    assert (content["framework"], content["role"], content["rank"]) == ("engine 1.0", "scheduler", 2)
    assert content["seam"] == "MultiPlatformOp.dispatch_forward"
    assert content["operators"][0]["calls"] == 3
    assert content["counts"] == "calls (eager mode)"
    assert content["config"]["report"]["from"] == "T_REPORT"
    assert {"vendors", "demotions", "not_served", "left_to_framework", "device", "pid"} <= set(content)


@pytest.mark.parametrize(
    ("path", "name"), [("r.json", "r.rank0.json"), ("r", "r.rank0.json"), ("a.b.txt", "a.b.rank0.txt")]
)
def test_the_rank_goes_before_the_suffix(report, tmp_path, path, name):
    assert report(path=path).write() == tmp_path / name


def test_groups_side_by_side_are_told_apart_in_name_table_and_file(report, tmp_path):
    one = report(dp_rank=1, rank=2, role="scheduler")
    assert one.write() == tmp_path / "report.dp1.rank2.json"
    assert one.table().startswith("fl-dispatch on engine 1.0, scheduler dp 1 rank 2, cpu\n")
    assert (one.as_dict()["dp_rank"], one.as_dict()["rank"]) == (1, 2)


def test_without_a_path_nothing_is_written(report, tmp_path):
    one = report(path=None)
    assert one.write() is None
    one.keep_writing()
    one.stop()
    assert list(tmp_path.iterdir()) == []


def test_the_folder_is_created(report, tmp_path):
    assert report(path="deep/er/report.json").write().parent == tmp_path / "deep" / "er"


def test_a_reader_never_sees_half_a_file(report, bind, tmp_path):
    site = bind()
    one = report()
    path = one.write()
    stop, broken = threading.Event(), []

    def read():
        while not stop.is_set():
            try:
                json.loads(path.read_text())
            except ValueError as error:
                broken.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for calls in range(300):
        site.calls = calls
        one.write()
    stop.set()
    reader.join()
    assert broken == []
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.rank0.json"]


def test_nothing_is_written_when_nothing_changed(report, bind):
    site = bind()
    one = report()
    path = one.write()
    before = path.stat().st_mtime_ns, path.stat().st_ino
    one.write()
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == before
    site.calls = 1
    one.write()
    assert path.stat().st_ino != before[1] or path.stat().st_mtime_ns != before[0]


def test_a_thread_keeps_the_file_up_to_date(report, bind):
    site = bind()
    one = report()
    one.keep_writing(every_seconds=0.01)
    site.calls = 12
    content = wait_for_report(one.path_for(one.write().with_name("report.json")), {"silu_and_mul": 12})
    assert content["operators"][0]["calls"] == 12
    one.stop()
    assert all(thread.name != "fl-dispatch-report" or not thread.is_alive() or time.sleep(0.1) is None
               for thread in threading.enumerate())  # fmt: skip


def test_stopping_writes_the_last_state(report, bind):
    site = bind()
    one = report()
    one.keep_writing(every_seconds=60)
    site.calls = 9
    one.stop()
    assert json.loads(one.write().read_text())["operators"][0]["calls"] == 9


def test_a_path_that_cannot_be_written_is_said_at_the_start(one, tmp_path):
    (tmp_path / "file").write_text("")
    config = load_config("T_", {"T_REPORT": str(tmp_path / "file" / "report.json")}, vendors=[])
    with pytest.raises(ConfigError) as caught:
        Report(one, "engine 1.0", config).keep_writing()
    assert "T_REPORT: cannot write the report " in str(caught.value)
    assert "report.rank0.json: " in str(caught.value)


def test_the_thread_survives_a_disk_that_fails_for_a_while(report, bind, monkeypatch):
    site = bind()
    one = report()
    one.keep_writing(every_seconds=0.01)
    write, failed = one.write, threading.Event()

    def fail(path=None):
        failed.set()
        raise OSError("disk full")

    monkeypatch.setattr(one, "write", fail)
    assert failed.wait(5)
    monkeypatch.setattr(one, "write", write)
    site.calls = 4
    wait_for_report(one.path_for(one.write().with_name("report.json")), {"silu_and_mul": 4})
    one.stop()


def test_waiting_ends_with_the_last_state(report, bind):
    bind(calls=2)
    path = report().write()
    with pytest.raises(TimeoutError, match=r"wanted {'silu_and_mul': 3}, it has {'silu_and_mul': 2} after 0.1 s"):
        wait_for_report(path, {"silu_and_mul": 3}, timeout=0.1)
    with pytest.raises(TimeoutError, match="there is no report"):
        wait_for_report(path.with_name("nothing.json"), timeout=0.1)


def test_writing_while_layers_come_and_go_is_safe(report, one, make_layer):
    content, errors = report(), []
    stop = threading.Event()

    def churn():
        while not stop.is_set():
            layer = make_layer()
            one.bind("silu_and_mul", layer, label="Churn")

    thread = threading.Thread(target=churn)
    thread.start()
    for _ in range(100):
        try:
            content.as_dict()
        except RuntimeError as error:
            errors.append(error)
    stop.set()
    thread.join()
    assert errors == []


def test_a_second_live_process_with_the_same_rank_gets_a_file_of_its_own(tmp_path, manager, impl, layer):
    path = tmp_path / "report.json"
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        (tmp_path / "report.rank0.json").write_text(json.dumps({"pid": other.pid, "operators": []}))
        built = manager(impl("a"))
        site = built.bind("silu_and_mul", layer)
        written = Report(built, "test 1", load_config("FL_DISPATCH_", {"FL_DISPATCH_REPORT": str(path)})).write()
    finally:
        other.kill()
        other.wait()
    assert site.impl is not None
    assert written == tmp_path / f"report.rank0.pid{os.getpid()}.json"
    assert json.loads(written.read_text())["pid"] == os.getpid()


def test_the_file_of_a_process_that_ended_is_taken_over(tmp_path, manager, impl):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (tmp_path / "report.rank0.json").write_text(json.dumps({"pid": ended.pid, "operators": []}))
    settings = {"FL_DISPATCH_REPORT": str(tmp_path / "report.json")}
    assert (
        Report(manager(impl("a")), "test 1", load_config("FL_DISPATCH_", settings)).write()
        == tmp_path / "report.rank0.json"
    )


def test_a_folder_is_no_path_of_a_report(tmp_path, manager, impl):
    config = load_config("FL_DISPATCH_", {"FL_DISPATCH_REPORT": str(tmp_path)})
    with pytest.raises(ConfigError, match=r"FL_DISPATCH_REPORT: .* is a folder; give the path of a file"):
        Report(manager(impl("a")), "test 1", config).keep_writing()
