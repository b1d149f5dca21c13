"""The command line of `finetune run`."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TextIO

from pydantic import ValidationError

from finetune_operator import run_config
from finetune_operator.api import FineTuneJob, InvalidJobError, load_job
from finetune_operator.cli.run.conduct import Conductor, Killed
from finetune_operator.cli.run.display import choose
from finetune_operator.cli.run.folder import RunFolder, state_folder
from finetune_operator.cli.run.processes import Programs, tethered
from finetune_operator.cli.run.summary import Findings, adapter, failure, is_stop, place, stopped, success
from finetune_operator.cli.run.words import program
from finetune_trainer.config import Event, ExitReason, Outcome, RunConfig, RunError, parse_event
from finetune_trainer.config.survey import Survey

FAULTY, UNREADABLE, KILLED = 1, 2, 130


def main(argv: list[str], programs: Programs | None = None) -> int:
    """Run a job on this machine.

    Args:
        argv: the arguments after `finetune run`.
        programs: what is started; the trainer's own stages by default.

    Returns:
        0 when the adapter is published; 1 for faults in the job file; 2 for wrong usage or a file that
        cannot be read; 130 after a second Ctrl-C; else the exit code of the outcome's reason: 21
        (Preempted) after a first one.
    """
    options = _parser().parse_args(argv)
    try:
        job = load_job(options.file, local=True)
    except OSError as error:
        print(f"finetune run: {options.file}: {(error.strerror or str(error)).lower()}", file=sys.stderr)
        return UNREADABLE
    except InvalidJobError as error:
        print(error, file=sys.stderr)
        count = len(error.faults)
        print(f"finetune run: {count} {'fault' if count == 1 else 'faults'} to mend first", file=sys.stderr)
        return FAULTY
    missing = [package for package in ("torch", "transformers", "peft") if find_spec(package) is None]
    if missing:
        print(
            f"finetune run: needs {', '.join(missing)}; pip install 'finetune-operator[trainer]'",
            file=sys.stderr,
        )
        return UNREADABLE
    try:
        return _run(job, options, programs or Programs())
    except RunError as error:
        outcome = Outcome(reason=error.reason, message=error.message, hint=error.hint)
    except OSError as error:
        outcome = Outcome(
            reason=ExitReason.PREFLIGHT_FAILED,
            message=f"cannot work in {state_folder()}: {error.strerror or error}",
            hint="free some space there, or set FINETUNE_STATE to another folder",
        )
    _tell(outcome, failure(outcome, None), options, to=sys.stderr)
    return outcome.reason.exit_code


def _run(job: FineTuneJob, options: argparse.Namespace, programs: Programs) -> int:
    job = run_config.with_absolute_files(
        _with_output(job, options.output), folder=Path.cwd(), home=Path.home()
    )
    with RunFolder(job.metadata.name, run_config.local_uid(job)) as folder:
        if options.fresh:
            folder.renew()
        config = run_config.build(job, uid=folder.uid, attempt=folder.attempts + 1)
        found = survey(config, folder.path, programs)
        while options.fresh and found.published_attempt:  # by a run whose record here was lost
            folder.renew()
            config = run_config.build(job, uid=folder.uid, attempt=1)
            found = survey(config, folder.path, programs)
        if found.published_attempt:
            _tell_finished(config, found, options)
            return 0
        _check_gpus(config, found)
        work = folder.begin_attempt()
        variables: dict[str, str] = {
            variable.name: variable.value for variable in job.spec.workers.environment
        }
        code = _attempt(config, work, variables, options, programs)
        if code == 0 and not options.keep_work:
            folder.clear()
        return code


def _attempt(
    config: RunConfig, work: Path, variables: dict[str, str], options: argparse.Namespace, programs: Programs
) -> int:
    """Run one attempt and tell how it ended; returns the exit code."""
    config_path = work / "run.json"
    config.dump(config_path)
    findings = Findings()
    display = choose(sys.stdout, sys.stderr, json=options.json)

    def heard(event: Event) -> None:
        findings.note(event)
        display.event(event)

    try:
        conductor = Conductor(config, config_path, work, variables, programs, display, heard)
        outcome = asyncio.run(conductor.run())
    except Killed:
        display.close()
        line = "finetune run: killed; the same command continues from the last checkpoint"
        _tell(Outcome(reason=ExitReason.PREEMPTED, message="killed"), [line], options, to=sys.stderr)
        return KILLED
    finally:
        display.close()
    if outcome.reason is ExitReason.SUCCEEDED:
        _tell(outcome, success(findings, _program()), options)
    elif is_stop(outcome):
        _tell(outcome, stopped(outcome, findings), options, to=sys.stderr)
    else:
        lines = failure(outcome, work, findings, verbose=options.verbose)
        _tell(outcome, lines, options, to=sys.stderr)
    return outcome.reason.exit_code


def survey(config: RunConfig, folder: Path, programs: Programs) -> Survey:
    """Ask the trainer what there is on this machine and in the output.

    Raises:
        RunError: the output cannot be reached or written.
    """
    path = folder / "run.json"
    config.dump(path)
    command = tethered([*programs.survey, "--config", str(path)])
    done = subprocess.run(command, capture_output=True, check=False)
    line = (done.stdout.splitlines() or [b""])[-1]
    try:
        if done.returncode == 0:
            return Survey.model_validate_json(line)
        outcome = parse_event(line)
    except ValidationError:
        outcome = None
    if isinstance(outcome, Outcome):
        raise RunError(outcome.reason, outcome.message, outcome.hint)
    last = (done.stderr.decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
    raise RunError(ExitReason.INTERNAL, f"the survey ended with exit code {done.returncode}: {last}")


def _check_gpus(config: RunConfig, found: Survey) -> None:
    wanted = config.workers.replicas * config.workers.gpus_per_worker
    if wanted > found.gpus:
        has = f"{found.gpus} can be opened" if found.gpus else "none can be opened"
        raise RunError(
            ExitReason.PREFLIGHT_FAILED,
            f"the job wants {wanted} {'GPU' if wanted == 1 else 'GPUs'}, and {has} on this machine",
            "set workers.gpusPerWorker: 0 to train on the CPU",
        )


def _with_output(job: FineTuneJob, uri: str | None) -> FineTuneJob:
    if uri is None:
        return job
    output = job.spec.output.model_copy(update={"uri": uri})
    return job.model_copy(update={"spec": job.spec.model_copy(update={"output": output})})


def _program() -> str:
    on_path = shutil.which("finetune") is not None
    return program(Path(sys.argv[0]).absolute(), Path.cwd(), on_path=on_path, python=sys.executable)


def _tell_finished(config: RunConfig, found: Survey, options: argparse.Namespace) -> None:
    uri = place(found.published_uri)
    outcome = Outcome(reason=ExitReason.SUCCEEDED, message=f"finished already: {uri}")
    lines = [
        f"{config.name} is finished already, by attempt {found.published_attempt} (--fresh trains it anew)",
        *adapter(found.published_uri, found.published_bytes, program=_program()),
    ]
    _tell(outcome, lines, options)


def _tell(outcome: Outcome, lines: list[str], options: argparse.Namespace, to: TextIO | None = None) -> None:
    """Say how a run ended; a machine gets the outcome as the last event, and only bad news in words."""
    if options.json:
        print(outcome.model_dump_json(), flush=True)
    if to is not None or not options.json:
        print("\n".join(lines), file=to, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="finetune run",
        description="Run a job on this machine: the stages and agents are those of a cluster, as processes. "
        "The same job run again continues from its last checkpoint. Ctrl-C: checkpoint and stop; "
        "twice: stop at once.",
        epilog="Exit code: 0 the adapter is published, 1 faults in the job file, 2 wrong usage or an "
        "unreadable file, 21 stopped after a checkpoint, 130 killed by a second Ctrl-C, else that of the "
        "reason shown.",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="a file with one FineTuneJob")
    parser.add_argument("--fresh", action="store_true", help="begin anew in place of continuing")
    parser.add_argument("--output", metavar="URI", help="publish here in place of the job's output")
    parser.add_argument("--json", action="store_true", help="events as JSON lines, for machines")
    parser.add_argument("--keep-work", action="store_true", help="keep logs and work files after success")
    parser.add_argument("-v", "--verbose", action="store_true", help="show the traceback of what failed")
    return parser
