"""Trains adapters (LoRA) on chats, on a CPU: data, packing, memory and schedule are pure; `trainer.py` has torch."""
