"""The torch side of a group: what one rank process runs. Start reading at `rank/rank_process.py`.

A model family is added in `config/read_config.py`; what its layers compute is in `plain/model.py` and
`native/decoder.py`. A sampling parameter is applied in `sampling/sampler.py`. A weight format is read in
`checkpoint/weight_files.py`; a quantization is packed in `native/packed_weights.py`.
"""
