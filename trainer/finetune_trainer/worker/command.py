"""`finetune-worker`: the command line of the agent."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import resource
import sys
import time
import traceback
from pathlib import Path

from finetune_trainer.config import ExitReason, Outcome, RunError
from finetune_trainer.worker import termination
from finetune_trainer.worker.agent import Agent, Assignment
from finetune_trainer.worker.channel import Endpoint, Timing
from finetune_trainer.worker.entry import load_config
from finetune_trainer.worker.output import EventStream
from finetune_trainer.worker.programs import Programs
from finetune_trainer.worker.progress import Progress
from finetune_trainer.worker.status import StatusServer

_LOG = logging.getLogger(__name__)
_BEAT_SECONDS = 5.0
_NOWHERE = Endpoint("127.0.0.1", 0)


def main(
    argv: list[str] | None = None, programs: Programs | None = None, timing: Timing | None = None
) -> int:
    """Run one worker of one attempt.

    Writes events to the standard output, the last one being the outcome, which is also left
    as the pod's termination message.

    Args:
        argv: arguments without the program's name; those of the process by default.
        programs: what the agent starts; the trainer's own stages by default.
        timing: seconds that govern the control channel.

    Returns:
        the exit code of the outcome's reason.
    """
    arguments = _parser().parse_args(argv)
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format=f"finetune-worker[{arguments.index}]: %(message)s"
    )
    # A rank that aborts would leave its whole memory on the disk.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    stream: EventStream | None = None
    try:
        assignment = _assignment(arguments)
        stream = EventStream(Progress.begin(assignment.config, assignment.index, time.time()))
        outcome = asyncio.run(
            _serve(assignment, arguments.port, stream, programs or Programs(), timing or Timing())
        )
    except RunError as error:
        outcome = Outcome(worker=arguments.index, reason=error.reason, message=error.message, hint=error.hint)
    except KeyboardInterrupt:
        outcome = Outcome(
            worker=arguments.index, reason=ExitReason.PREEMPTED, message="stopped before it began"
        )
    except Exception as error:  # a fault of the agent's own must still be told to whoever waits
        outcome = _own_fault(arguments.index, error)
    outcome = termination.shorten(outcome)
    if stream is not None:
        stream.emit(outcome)
        stream.close()
    else:
        print(outcome.model_dump_json(), flush=True)
    try:
        termination.write(outcome)
    except OSError as error:
        _LOG.warning("the termination message cannot be written: %s", error)
    return outcome.reason.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="finetune-worker", description="The agent of one worker: starts its ranks and watches over them."
    )
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="run.json")
    parser.add_argument("--work", type=Path, required=True, metavar="DIR", help="this worker's own folder")
    parser.add_argument(
        "--index",
        type=int,
        default=os.environ.get("JOB_COMPLETION_INDEX", "0"),
        help="this worker's index from 0 (default: JOB_COMPLETION_INDEX, else 0)",
    )
    parser.add_argument(
        "--coordinator",
        type=Endpoint.parse,
        default=_NOWHERE,
        metavar="HOST:PORT",
        help="where worker 0 listens; needed with more than one worker",
    )
    parser.add_argument(
        "--port",
        type=int,
        default=0,
        help="port for /metrics, /progress and /healthz on every interface "
        "(default 0: any free port, for this machine only)",
    )
    parser.add_argument(
        "--grace",
        type=float,
        default=Assignment.grace_seconds,
        metavar="SECONDS",
        help="how long ranks that were asked to stop may take to checkpoint (default %(default)s)",
    )
    return parser


def _assignment(arguments: argparse.Namespace) -> Assignment:
    config = load_config(arguments.config)
    replicas = config.workers.replicas
    if not 0 <= arguments.index < replicas:
        raise RunError(
            ExitReason.INVALID_CONFIGURATION,
            f"worker index {arguments.index} is not one of 0 to {replicas - 1}",
            "workers.replicas says how many workers there are",
        )
    if replicas > 1 and arguments.coordinator is _NOWHERE:
        raise RunError(
            ExitReason.INVALID_CONFIGURATION,
            f"the run has {replicas} workers, and --coordinator does not say where worker 0 listens",
        )
    return Assignment(
        config_path=arguments.config.absolute(),
        config=config,
        index=arguments.index,
        work=arguments.work.absolute(),
        endpoint=arguments.coordinator,
        grace_seconds=arguments.grace,
    )


async def _serve(
    assignment: Assignment, port: int, stream: EventStream, programs: Programs, timing: Timing
) -> Outcome:
    status = StatusServer(port, stream.progress)
    _LOG.info("serving /metrics, /progress and /healthz on port %d", status.port)

    async def beat() -> None:
        while True:
            status.beat()
            await asyncio.sleep(_BEAT_SECONDS)

    beating = asyncio.create_task(beat())
    try:
        return await Agent(assignment, stream.emit, stream.progress, programs, timing).run()
    finally:
        beating.cancel()
        status.close()


def _own_fault(worker: int, error: BaseException) -> Outcome:
    lines = "".join(traceback.format_exception(error)).splitlines()
    return Outcome(
        worker=worker,
        reason=ExitReason.INTERNAL,
        message=f"the agent of worker {worker} failed: {type(error).__name__}: {error}",
        hint="this is a fault of finetune-operator: please report it with the traceback",
        traceback=lines[-30:],
    )
