# SPDX-License-Identifier: Apache-2.0
"""``fl-dispatch bisect`` with small commands that read the variable."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from fl_dispatch.bisect import judge
from fl_dispatch.bisect.candidates import Candidates, candidates
from fl_dispatch.bisect.judge import run_command, verdict
from fl_dispatch.bisect.logs import end_of
from fl_dispatch.bisect.search import Verdict
from fl_dispatch.cli import bisect

#: What it says by its exit status when any of these operators is not on what is known to be good.
NORM = 'case "$FL_DISPATCH_PER_OP" in *rms_norm=reference*) exit 0;; esac; exit 1'
PAIR = NORM.replace("exit 0", 'case "$FL_DISPATCH_PER_OP" in *silu_and_mul=reference*) exit 0;; esac')
THREE = ("--ops", "silu_and_mul,rms_norm,rotary_embedding")


def sh(body: str) -> tuple[str, ...]:
    return ("--", "sh", "-c", body)


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.fixture(autouse=True)
def _logs_are_left_with_the_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))


@pytest.fixture
def not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs by the policy is not asked: that takes seconds and is not what these tests are about."""
    monkeypatch.setattr(bisect, "candidates", lambda *_: Candidates(("vendor.x",), (), ("x",)))


def test_the_guilty_operator_is_named_with_the_way_round_it(run, install_vendor, site, monkeypatch) -> None:
    install_vendor("good")
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.setenv("FL_DISPATCH_PREFER", "vendor")
    done = run("bisect", *THREE, *sh(NORM))
    text = words(done.out)
    assert done.code == 0
    assert text.startswith(
        "rms_norm is to blame: exchanging it is enough, with it alone on reference the result is good, twice."
    )
    assert "by the policy rms_norm runs vendor.good" in text
    assert "export FL_DISPATCH_PER_OP=rms_norm=reference" in text
    assert "pytest --fl-vendor good --fl-operator rms_norm" in text
    assert "COMPARE" not in text  # nothing of a framework would write the report


def test_with_a_framework_the_comparison_is_the_next_step(run, not_asked) -> None:
    done = run("bisect", "--prefix", "SGLANG_FL_", *THREE, *sh(NORM.replace("FL_DISPATCH", "SGLANG_FL")))
    assert "SGLANG_FL_COMPARE=1 SGLANG_FL_REPORT=report.json sh -c" in words(done.out)


def test_each_run_is_one_line_and_leaves_its_output(run, not_asked, tmp_path) -> None:
    done = run("bisect", *THREE, "--logs", str(tmp_path / "logs"), *sh("echo seen: $FL_DISPATCH_PER_OP; " + NORM))
    runs = [line.rpartition(",")[0] for line in done.err.splitlines() if line.startswith("run ")]
    assert runs == [
        "run 1: as set ... bad (exit status 1)",
        "run 2: with rms_norm, rotary_embedding, silu_and_mul on reference ... good (exit status 0)",
        "run 3: with silu_and_mul on reference ... bad (exit status 1)",
        "run 4: with rms_norm, silu_and_mul on reference ... good (exit status 0)",
        "run 5: with rms_norm on reference ... good (exit status 0)",
        "run 6: once more with rms_norm on reference ... good (exit status 0)",
    ]
    logs = [(tmp_path / "logs" / f"run-{number}.log").read_text().splitlines() for number in range(1, 7)]
    assert [log[-1] for log in logs][2:5] == [
        "seen: silu_and_mul=reference",
        "seen: rms_norm=reference;silu_and_mul=reference",
        "seen: rms_norm=reference",
    ]
    assert logs[4][0].startswith("$ FL_DISPATCH_PER_OP=rms_norm=reference sh -c ")


def test_two_that_are_guilty_together_are_both_found(run, not_asked) -> None:
    done = run("bisect", *sh(PAIR))
    assert done.code == 0
    assert words(done.out).startswith(
        "rms_norm and silu_and_mul are to blame: exchanging them is enough, with all of them on reference the result is "
        "good, twice, and it is bad in every run without one of them."
    )
    assert "export FL_DISPATCH_PER_OP='rms_norm=reference;silu_and_mul=reference'" in done.out


def test_json_has_the_result_and_every_run(run, not_asked) -> None:
    found = run("bisect", *THREE, "--json", *sh(NORM)).json()
    assert (found["outcome"], found["guilty"]) == ("found", ["rms_norm"])
    assert found["avoid_with"] == {"FL_DISPATCH_PER_OP": "rms_norm=reference"}
    assert [(one["orders"], one["verdict"]) for one in found["runs"]][-1] == ({"rms_norm": "reference"}, "good")
    assert [one["number"] for one in found["runs"]] == [1, 2, 3, 4, 5, 6]
    assert all(Path(one["log"]).exists() for one in found["runs"])


def test_orders_that_are_set_for_other_operators_stay_in_force(run, not_asked, monkeypatch) -> None:
    monkeypatch.setenv("FL_DISPATCH_PER_OP", "gelu_and_mul=vendor|reference; rms_norm=flagos")
    body = 'case "$FL_DISPATCH_PER_OP" in *"gelu_and_mul=vendor|reference"*) ;; *) exit 200;; esac; ' + NORM
    done = run("bisect", *THREE, *sh(body))
    assert done.code == 0
    assert "export FL_DISPATCH_PER_OP='gelu_and_mul=vendor|reference;rms_norm=reference'" in done.out


SECOND_VENDOR = """
    from fl_dispatch import BackendImplKind, OpImpl

    def register(registry):
        for number in "12":
            registry.register(OpImpl("rms_norm", f"vendor.two{number}", BackendImplKind.VENDOR,
                                     lambda obj, x, residual=None: x, vendor="two"))
    """


def test_other_implementations_are_tried_and_a_good_one_is_recommended(run, install_vendor, site, monkeypatch) -> None:
    install_vendor("good")
    install_vendor("two", SECOND_VENDOR)
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.setenv("FL_DISPATCH_PREFER", "vendor:good")
    body = 'case "$FL_DISPATCH_PER_OP" in *=reference*|*=impl:vendor.two2*) exit 0;; esac; exit 1'
    words_ = ("bisect", "--ops", "rms_norm")
    without = run(*words_, *sh(body))
    assert "--try-others would also try impl:vendor.two1, impl:vendor.two2" in words(without.out)
    done = run(*words_, "--try-others", *sh(body))
    assert "impl:vendor.two1 in its place: bad" in done.out
    assert "impl:vendor.two2 in its place: good" in done.out
    assert "export FL_DISPATCH_PER_OP=rms_norm=impl:vendor.two2" in done.out
    assert "impl:reference" not in done.out + done.err


def test_what_several_have_in_common_is_recommended_though_others_are_good_one_at_a_time(run, monkeypatch) -> None:
    monkeypatch.setattr(bisect, "candidates", lambda *_: Candidates(("vendor.x",), ("impl:vendor.y",), ()))
    body = PAIR.replace("*rms_norm=reference*", "*rms_norm=reference*|*rms_norm=impl:vendor.y*")
    done = run("bisect", *THREE, "--try-others", *sh(body))
    assert "rms_norm=impl:vendor.y" not in done.out
    assert "impl:vendor.y in its place: good" in done.out
    assert "export FL_DISPATCH_PER_OP='rms_norm=reference;silu_and_mul=reference'" in done.out


def test_an_interruption_while_asking_what_runs_costs_no_result(run, monkeypatch) -> None:
    def interrupted(*_: object) -> Candidates:
        raise KeyboardInterrupt

    monkeypatch.setattr(bisect, "candidates", interrupted)
    done = run("bisect", *THREE, *sh(NORM))
    assert done.code == 130
    assert "what runs rms_norm is not known: interrupted" in done.out
    assert "more was not looked at: interrupted" in done.out
    assert "export FL_DISPATCH_PER_OP=rms_norm=reference" in done.out
    found = run("bisect", *THREE, "--json", *sh(NORM)).json()
    assert (found["outcome"], found["guilty"], found["stopped"]) == ("found", ["rms_norm"], "interrupted")


def test_another_implementation_that_gives_the_search_up_costs_no_result(run, monkeypatch) -> None:
    monkeypatch.setattr(bisect, "candidates", lambda *_: Candidates(("vendor.x",), ("impl:vendor.y", "native"), ()))
    body = 'case "$FL_DISPATCH_PER_OP" in *=native*) exit 255;; *vendor.y*) exit 0;; esac; ' + NORM
    done = run("bisect", *THREE, "--try-others", *sh(body))
    assert done.code == 0
    assert "impl:vendor.y in its place: good" in done.out
    assert "more was not looked at: given up: run 8 ended with exit status 255" in words(done.out)
    assert "export FL_DISPATCH_PER_OP=rms_norm=impl:vendor.y" in done.out


def test_where_the_number_of_tokens_decides_every_choice_is_named(install_vendor, site, tmp_path) -> None:
    install_vendor("good")
    file = tmp_path / "policy.yaml"
    file.write_text("per_op: {rms_norm: {16: vendor, more: reference}}", encoding="utf-8")
    found = candidates(
        "rms_norm", "FL_DISPATCH_", {**os.environ, "PYTHONPATH": str(site), "FL_DISPATCH_CONFIG": str(file)}
    )
    assert (found.chosen, found.vendors) == (("vendor.good", "reference"), ("good", "reference"))
    assert "impl:vendor.good" not in found.others
    assert "native" not in found.others  # nothing of a framework runs


def test_the_method_of_a_framework_is_another_implementation_where_there_is_one() -> None:
    assert "native" in candidates("rms_norm", "SGLANG_FL_", os.environ).others


def test_a_policy_that_cannot_be_explained_costs_no_result() -> None:
    found = candidates("rms_norm", "FL_DISPATCH_", {**os.environ, "FL_DISPATCH_PREFERR": "vendor"})
    assert found.chosen == ()
    assert found.problem.startswith("`fl-dispatch explain rms_norm`: unknown environment variable FL_DISPATCH_PREFERR;")


def test_a_good_result_leaves_nothing_to_find(run) -> None:
    done = run("bisect", *sh("exit 0"))
    assert done.code == 1
    assert words(done.out).startswith("nothing to find: with the settings as they are the result is good.")


def test_a_fault_that_stays_is_not_blamed_on_operators(run, monkeypatch) -> None:
    monkeypatch.setenv("FL_DISPATCH_FLAGOS_ATEN", "1")
    done = run("bisect", *THREE, *sh("echo no such model >&2; exit 1"))
    assert done.code == 1
    text = words(done.out)
    assert text.startswith("not these operators: the result is bad with all of them on reference too (run 2,")
    assert "the other operators: leave --ops out" in text
    assert "`FL_DISPATCH_OOT_WHITELIST=none`: bad with that, too, is not a matter of fl-dispatch" in text
    assert "`FL_DISPATCH_FLAGOS_ATEN=0`: FlagGems replaces PyTorch's own operators" in text
    assert "FL_DISPATCH_* is not read by SGLang and vLLM; for them give --prefix SGLANG_FL_ or VLLM_FL_" in text
    assert text.endswith("no such model")
    assert "--good native" not in text  # it would be refused


def test_with_a_framework_its_own_methods_are_worth_a_try(run) -> None:
    words_ = ("bisect", "--prefix", "SGLANG_FL_", *THREE)
    hint = "`--good native`: the framework's own methods instead of those of reference"
    assert hint in words(run(*words_, *sh("exit 1")).out)
    assert "`--good native`" not in words(run(*words_, "--good", "native", *sh("exit 1")).out)


def test_a_command_that_depends_on_chance_is_recognised(run, tmp_path) -> None:
    once_good = f'[ "$FL_DISPATCH_PER_OP" = rms_norm=reference ] && mkdir {tmp_path}/seen && exit 0'
    done = run("bisect", "--ops", "rms_norm", *sh(f"{once_good}; exit 1"))
    assert done.code == 1
    assert "with rms_norm on reference the result was good once and is bad now" in words(done.out)


def test_a_run_that_hangs_is_ended_and_not_judged(run) -> None:
    start = time.monotonic()
    done = run(
        "bisect", "--ops", "rms_norm", "--timeout", "0.3", *sh('[ -n "$FL_DISPATCH_PER_OP" ] && sleep 60; exit 1')
    )
    assert time.monotonic() - start < 20
    assert done.code == 1
    assert "run 2: with rms_norm on reference ... not judged (no end within 0.3 s)" in done.err
    assert "not settled: runs that could not be judged are in the way." in done.out


def test_a_status_that_says_nothing_ends_the_search(run) -> None:
    done = run("bisect", *sh("exit 255"))
    assert done.code == 1
    assert "given up: run 1 ended with exit status 255, which says neither good nor bad" in words(done.out)
    assert run("bisect", "--json", *sh("exit 255")).json()["outcome"] == "given up"


@pytest.mark.parametrize(
    ("status", "judged", "why"),
    [
        (0, Verdict.GOOD, "exit status 0"),
        (1, Verdict.BAD, "exit status 1"),
        (125, Verdict.UNJUDGED, "exit status 125"),
        (127, Verdict.BAD, "exit status 127"),
        (-signal.SIGSEGV, Verdict.BAD, "ended by SIGSEGV"),
        (128 + signal.SIGKILL, Verdict.BAD, "ended by SIGKILL"),
        (-signal.SIGQUIT, Verdict.BAD, "ended by SIGQUIT"),
        (-signal.SIGHUP, None, "ended by SIGHUP"),
        (-signal.SIGINT, None, "ended by SIGINT"),
        (128 + signal.SIGTERM, None, "ended by SIGTERM"),
        (255, None, "exit status 255"),
    ],
)
def test_what_an_exit_status_says(status: int, judged: Verdict | None, why: str) -> None:
    assert verdict(status) == (judged, why)


def test_a_command_has_no_input(tmp_path) -> None:
    reads, writes = os.pipe()
    os.write(writes, b"an answer\n")
    os.close(writes)
    ours = os.dup(0)
    os.dup2(reads, 0)
    try:
        assert run_command(["sh", "-c", "read line"], os.environ, tmp_path / "log", 30) == 1
    finally:
        os.dup2(ours, 0)
        os.close(ours)
        os.close(reads)


def test_what_a_command_leaves_running_is_asked_to_end_first(tmp_path) -> None:
    asked = tmp_path / "asked"
    left = f"trap 'echo > {asked}; exit' TERM; echo > {tmp_path}/ready; while :; do sleep 0.1; done"
    body = f"({left}) & while ! [ -e {tmp_path}/ready ]; do sleep 0.01; done"
    assert run_command(["sh", "-c", body], os.environ, tmp_path / "log", None) == 0
    assert asked.exists()


def test_what_does_not_end_when_asked_is_killed(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(judge, "_GRACE", 0.1)
    log = tmp_path / "log"
    body = "trap '' TERM; sleep 30 & echo $!"  # what is ignored stays so in what is started
    assert run_command(["sh", "-c", body], os.environ, log, None) == 0
    with pytest.raises(ProcessLookupError):
        _wait_for_end(int(log.read_text()))


#: Leaves an ended process in its group, of which the parent is in another group, alive, and does not notice.
UNNOTICED = """
import os, time
told, tell = os.pipe()
if os.fork():
    os.close(tell)
    os.read(told, 1)
else:
    os.close(told)
    ended = os.fork()
    if not ended:
        os._exit(0)
    os.waitid(os.P_PID, ended, os.WEXITED | os.WNOWAIT)
    os.setsid()
    print(os.getpid(), flush=True)
    os.close(tell)
    time.sleep(60)
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only /proc tells what has ended from what runs")
def test_what_has_ended_and_is_not_noticed_is_not_waited_for(tmp_path, monkeypatch) -> None:
    log = tmp_path / "log"
    waits: list[float] = []
    monkeypatch.setattr(judge, "_GRACE", 0.1)
    monkeypatch.setattr(judge.time, "sleep", waits.append)
    try:
        assert run_command([sys.executable, "-IS", "-c", UNNOTICED], os.environ, log, None) == 0
    finally:
        os.kill(int(log.read_text()), signal.SIGKILL)
    assert waits == []


@pytest.mark.parametrize("name", ["SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM"])
def test_an_interruption_while_a_command_is_started_ends_it(name, tmp_path, monkeypatch) -> None:
    started = []

    class Interrupted(Exception):
        pass

    def handler(*_: object) -> None:
        raise Interrupted

    class Popen(subprocess.Popen):
        def __init__(self, *args, **kwargs) -> None:
            super().__init__(*args, **kwargs)
            started.append(self)
            signal.raise_signal(signal.Signals[name])  # it runs, and nobody has been told

    monkeypatch.setattr(subprocess, "Popen", Popen)
    before = signal.signal(signal.Signals[name], handler)
    try:
        with pytest.raises(Interrupted):
            run_command(["sleep", "30"], os.environ, tmp_path / "log", 5)
    finally:
        signal.signal(signal.Signals[name], before)
    try:
        assert started[0].returncode == -signal.SIGTERM
    finally:
        started[0].kill()


def test_a_run_that_cannot_be_written_down_says_what_is_known(run, tmp_path) -> None:
    # The folder goes after the third run, as a full disk would stop the fourth.
    body = f'case "$FL_DISPATCH_PER_OP" in silu_and_mul=*) mv {tmp_path}/logs {tmp_path}/gone;; esac; {NORM}'
    done = run("bisect", *THREE, "--logs", str(tmp_path / "logs"), *sh(body))
    assert done.code == 1
    assert "run-4.log cannot be written: No such file or directory. Known so far: at least one of" in words(done.out)


def test_of_a_long_log_only_the_end_is_read(tmp_path, monkeypatch) -> None:
    log = tmp_path / "log"
    with log.open("wb") as file:
        file.write(b"$ command\n")
        file.truncate(1 << 40)  # no memory would hold it
        file.seek(0, os.SEEK_END)
        file.write(b"\n" + b"".join(b"line %d\n" % number for number in range(20)))
    assert end_of(log) == [f"line {number}" for number in range(8, 20)]


def test_one_long_line_is_cut(tmp_path) -> None:
    log = tmp_path / "log"
    log.write_text("$ command\n" + "x" * 100_000)
    (line,) = end_of(log)
    assert line.startswith("... xxx")
    assert len(line) < 10_000


def test_the_command_is_not_part_of_its_output(tmp_path) -> None:
    log = tmp_path / "log"
    log.write_text("$ command\n")
    assert end_of(log) == []
    log.write_text("$ command\nits output\n")
    assert end_of(log) == ["its output"]


def test_what_a_command_leaves_running_is_ended(tmp_path) -> None:
    log = tmp_path / "log"
    assert run_command(["sh", "-c", "sleep 300 & echo $!"], os.environ, log, None) == 0
    with pytest.raises(ProcessLookupError):
        _wait_for_end(int(log.read_text()))


def _wait_for_end(pid: int) -> None:
    """Raises ProcessLookupError when the process is gone, or has ended and waits for its parent to notice."""
    for _ in range(200):
        os.kill(pid, 0)
        if Path(f"/proc/{pid}/stat").exists() and ") Z " in Path(f"/proc/{pid}/stat").read_text():
            raise ProcessLookupError
        time.sleep(0.02)


@pytest.mark.parametrize("name", ["HUP", "INT", "QUIT", "TERM"])
def test_an_interruption_ends_the_command_and_says_what_is_known(name, tmp_path) -> None:
    # The third run interrupts as soon as it can: when it has started, but perhaps before that is known.
    interrupts = f"echo $$ > {tmp_path}/pid; kill -{name} $PPID; exec sleep 300"
    body = f'case "$FL_DISPATCH_PER_OP" in *gemma*) exit 0;; "") exit 1;; esac; {interrupts}'
    command = ["bisect", "--prefix", "FL_DISPATCH_", "--ops", "rms_norm,gemma_rms_norm", *sh(body)]
    done = _with_signal(f"SIG{name}", signal.SIG_DFL, command)
    assert done.returncode == 130
    said = words(done.stderr)
    assert "fl-dispatch: interrupted. Known so far: at least one of rms_norm, gemma_rms_norm is to blame." in said
    with pytest.raises(ProcessLookupError):
        _wait_for_end(int((tmp_path / "pid").read_text()))


def test_the_end_of_a_terminal_comes_twice_and_cuts_nothing_short() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        with judge.all_as_ctrl_c():
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGHUP)
            try:
                signal.raise_signal(signal.SIGHUP)
            except KeyboardInterrupt:  # it would end the tests
                pytest.fail("the second one interrupts, too")
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)


def test_under_nohup_the_end_of_the_terminal_is_no_interruption() -> None:
    body = "kill -HUP $PPID; exit 1"
    done = _with_signal(
        "SIGHUP", signal.SIG_IGN, ["bisect", "--prefix", "FL_DISPATCH_", "--ops", "rms_norm", *sh(body)]
    )
    assert (done.returncode, "run 2: with rms_norm on reference ... bad" in done.stderr) == (1, True), done.stderr


def _with_signal(name: str, disposition: signal.Handlers, command: list[str]) -> subprocess.CompletedProcess[str]:
    """The command with a signal as given, whatever the tests themselves were started under."""
    return subprocess.run(
        [sys.executable, "-m", "fl_dispatch", *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
        preexec_fn=lambda: signal.signal(signal.Signals[name], disposition),
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "no command to judge by; give one that exits with 0 if its result is good, after --"),
        (("--json", "--"), "no command to judge by"),
        (("--", "no-such-program-here"), "command 'no-such-program-here' cannot be run: No such file or directory"),
        (("--ops", "rmsnorm", "--", "true"), "--ops: unknown operator 'rmsnorm'; did you mean 'rms_norm'?"),
        (("--good", "referense", "--", "true"), "--good: unknown selection token 'referense'; valid tokens are"),
        (("--good", "vendor:godo", "--", "true"), "no installed vendor is named 'godo'"),
        (
            ("--good", "native", "--", "true"),
            "--good native: only the layers of a framework have a method of their own",
        ),
        (("--timeout", "0", "--", "true"), "--timeout: 0 is no time to wait; give seconds"),
        (("--logs", "/dev/null/x", "--", "true"), "--logs: '/dev/null/x' cannot be made a folder"),
        (("--logs", "/proc", "--", "true"), "--logs: nothing can be written in '/proc': "),
        (("--prefix", "SGLANG", "--", "true"), "unknown prefix 'SGLANG'"),
    ],
)
def test_wrong_usage_is_named_with_a_hint(arguments, message, run) -> None:
    done = run("bisect", *arguments)
    assert (done.code, done.out) == (2, "")
    assert message in words(done.err)


def test_an_unknown_option_is_not_taken_for_the_command(run, capfd) -> None:
    with pytest.raises(SystemExit) as ended:
        run("bisect", "--godo", "native", "--", "true")
    assert ended.value.code == 2
    assert "unrecognized arguments: --godo" in capfd.readouterr().err


def test_without_a_temporary_folder_the_option_is_named(run, tmp_path, monkeypatch) -> None:
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(tempfile, "tempdir", str(tmp_path / "none"))
        done = run("bisect", *sh("exit 0"))
    assert (done.code, done.out) == (2, "")
    assert "no temporary folder can be made: No such file or directory; name one with --logs" in words(done.err)


def test_output_of_other_runs_is_not_overwritten(run, tmp_path) -> None:
    (tmp_path / "run-1.log").write_text("precious")
    done = run("bisect", "--logs", str(tmp_path), *sh("exit 0"))
    assert done.code == 2
    assert "has the output of other runs; name a new folder" in words(done.err)
    assert (tmp_path / "run-1.log").read_text() == "precious"


def test_operators_whose_exchange_changes_nothing_are_left_out(run, monkeypatch) -> None:
    monkeypatch.setenv("FL_DISPATCH_PER_OP", "rotary_embedding=reference")
    monkeypatch.setenv("FL_DISPATCH_OOT_BLACKLIST", "rms_norm")
    done = run("bisect", "--json", *sh("exit 1"))
    assert "left out: rotary_embedding, on reference already" in done.err
    assert "left out: rms_norm, left to the framework: in the black list (FL_DISPATCH_OOT_BLACKLIST)" in words(done.err)
    named = json.loads(done.out)["runs"][1]["orders"]
    assert set(named) == {"silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul", "gemma_rms_norm"}
    done = run("bisect", *THREE, *sh("exit 1"))
    assert (done.code, done.out) == (2, "")
    assert "--ops: rms_norm cannot be to blame, it is left to the framework" in words(done.err)


def test_an_operator_that_is_on_what_is_good_for_some_tokens_only_is_looked_at(run, monkeypatch, tmp_path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("per_op: {rms_norm: {16: reference, more: vendor}}", encoding="utf-8")
    monkeypatch.setenv("FL_DISPATCH_CONFIG", str(file))
    done = run("bisect", "--json", *sh("exit 1"))
    assert "rms_norm" in json.loads(done.out)["runs"][1]["orders"]


def test_where_all_are_on_what_is_good_there_is_no_run(run, monkeypatch) -> None:
    monkeypatch.setenv("FL_DISPATCH_PREFER", "reference")
    done = run("bisect", *sh("exit 1"))
    assert (done.code, done.out) == (2, "")
    assert "no operator can be to blame: silu_and_mul is on reference already;" in words(done.err)
    assert "run 1" not in done.err


def test_an_adapter_that_is_not_installed_is_mentioned(run, monkeypatch) -> None:
    monkeypatch.setattr(bisect, "adapter_of", lambda prefix: None)
    done = run("bisect", "--prefix", "SGLANG_FL_", *sh("exit 0"))
    assert "note: its adapter is not installed here" in done.err
