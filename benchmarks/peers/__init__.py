"""Other engines that compute the same model, measured in turns with ours; `base.py` has their contract.

What runs in a peer's own Python (`llama_cpp.py`, `vllm_cpu.py`, `openvino_genai.py`) imports nothing
but the standard library, numpy, that peer, and files of this kind.
"""
