"""`finetune run` with programs given as JSON: `run.py PROGRAMS_JSON ARGUMENTS...`."""

import json
import sys

from finetune_operator.cli.run.command import main
from finetune_operator.cli.run.processes import Programs

if __name__ == "__main__":
    sys.exit(main(sys.argv[2:], Programs(**json.loads(sys.argv[1]))))
