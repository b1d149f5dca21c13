"""The real agent with fake programs and short times: `agent.py PROGRAMS_JSON TIMING_JSON ARGUMENTS...`."""

import json
import sys

from finetune_trainer.worker.channel import Timing
from finetune_trainer.worker.command import main
from finetune_trainer.worker.programs import Programs

if __name__ == "__main__":
    sys.exit(main(sys.argv[3:], Programs(**json.loads(sys.argv[1])), Timing(**json.loads(sys.argv[2]))))
