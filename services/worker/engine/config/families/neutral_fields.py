"""Fields of configs that do not change what a model computes; all others have to be read by the family."""

# generation, training, files, and what a library keeps for itself
WITHOUT_EFFECT = frozenset(
    """
    architectures model_type auto_map trust_remote_code
    transformers_version torch_dtype dtype _name_or_path _model_name_or_path name_or_path
    _commit_hash _attn_implementation _attn_implementation_autoset attn_implementation _experts_implementation
    attn_impl use_flash_attn flash_attn use_flash_attention use_cache cache_implementation return_dict
    use_return_dict output_attentions output_hidden_states torchscript use_bfloat16 tf_legacy_loss
    gradient_checkpointing low_cpu_mem_usage chunk_size_feed_forward init_device unsloth_fixed unsloth_version
    bos_token_id eos_token_id pad_token_id sep_token_id unk_token_id cls_token_id mask_token_id
    decoder_start_token_id image_token_id image_token_index boi_token_index eoi_token_index eoi_token_id
    model_max_length
    tokenizer_class tokenizer_name prefix task_specific_params finetuning_task problem_type id2label label2id
    num_labels max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty
    temperature top_k top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size
    encoder_no_repeat_ngram_size bad_words_ids num_return_sequences output_scores return_dict_in_generate
    forced_bos_token_id forced_eos_token_id remove_invalid_values exponential_decay_length_penalty
    suppress_tokens begin_suppress_tokens initializer_range initializer_factor init_std
    embedding_initializer_range
    attention_dropout hidden_dropout resid_pdrop embd_pdrop emb_pdrop attn_pdrop residual_dropout
    embedding_dropout emb_prob_drop resid_dropout attention_dropout_prob hidden_dropout_prob
    classifier_dropout
    dropout activation_dropout router_aux_loss_coef aux_loss_alpha seq_aux output_router_logits
    router_jitter_noise router_z_loss_coef pretraining_tp vocab_size_per_layer_input
    summary_activation summary_first_dropout summary_proj_to_labels summary_type summary_use_proj
    rope_type_history tie_encoder_decoder
    """.split()  # noqa: SIM905 (a list of two hundred quoted words is harder to read)
)

# what families read that have it, with the values that mean that the others do not have it
NEUTRAL = {
    "attention_bias": (False,),
    "attention_chunk_size": (),
    "attention_multiplier": (),
    "attention_sinks": (False,),
    "add_cross_attention": (False,),
    "attn_logit_softcapping": (0,),
    "clip_qkv": (),
    "cross_attention_hidden_size": (),
    "embedding_multiplier": (1,),
    "final_logit_softcapping": (0,),
    "hidden_activation": (),
    "is_decoder": (False, True),
    "is_encoder_decoder": (False,),
    "layer_types": (),
    "logit_scale": (1,),
    "logits_scaling": (1,),
    "mlp_bias": (False,),
    "no_rope_layers": ([],),
    "num_experts": (0, 1),
    "num_local_experts": (0, 1),
    "partial_rotary_factor": (1,),
    "pruned_heads": ({},),
    "qk_layernorm": (False,),
    "residual_multiplier": (1,),
    "rope_interleaved": (False,),
    "sliding_window": (),
    "use_bidirectional_attention": (False,),
    "use_qk_norm": (False,),
    "use_sliding_window": (False,),
}
