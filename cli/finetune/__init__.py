"""`ryz finetune`: options, progress and curve around the training of an adapter."""
