"""`ryz bench finetune`: speed and memory of training an adapter, and what a model learns of a made-up fact sheet."""
