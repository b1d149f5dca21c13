"""The FineTuneJob resource, its operator and the `finetune` command."""
