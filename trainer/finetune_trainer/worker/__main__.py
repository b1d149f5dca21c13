import sys

from finetune_trainer.worker import main

sys.exit(main())
