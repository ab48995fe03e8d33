"""Trains adapters (LoRA) on chats, on a CPU.

Data, packing, memory and schedule import no torch; `finetune.py` is the way through all of it.
"""
