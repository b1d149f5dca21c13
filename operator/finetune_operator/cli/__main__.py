"""`python -m finetune_operator.cli` is `finetune`."""

import sys

from finetune_operator.cli import main

sys.exit(main())
