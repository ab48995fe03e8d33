"""`ryz bench finetune`: speed and memory of training, and what is learned of a made-up fact sheet."""
