"""Trains one adapter: the stages that pods and `finetune run` execute alike."""
