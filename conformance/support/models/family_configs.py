"""Small checkpoints of Hugging Face families by config.json: odd sizes, one for each feature of a
family. Tests create them by transformers with random weights, and the page of families lists
them."""

from typing import Any

KINDS = {"w": "sliding_attention", "f": "full_attention"}
SIZES = {"vocab_size": 67, "num_hidden_layers": 2, "num_attention_heads": 4}
FALCON = {**SIZES, "model_type": "falcon", "hidden_size": 48, "max_position_embeddings": 256}
GROUPS = {**FALCON, "hidden_size": 64, "num_attention_heads": 8, "num_kv_heads": 2,
          "new_decoder_architecture": True}  # fmt: skip
OPT = {**SIZES, "model_type": "opt", "hidden_size": 48, "ffn_dim": 100,
       "max_position_embeddings": 60}  # fmt: skip
QWEN = {**SIZES, "hidden_size": 40, "intermediate_size": 77, "num_key_value_heads": 2,
        "max_position_embeddings": 256}  # fmt: skip
QWEN3 = {**QWEN, "model_type": "qwen3", "head_dim": 18}
NEOX = {**SIZES, "model_type": "gpt_neox", "hidden_size": 56, "intermediate_size": 77,
        "max_position_embeddings": 256, "rotary_pct": 0.75}  # fmt: skip
PHI2 = {**NEOX, "model_type": "phi", "partial_rotary_factor": 0.6}
STARCODER2 = {**QWEN, "model_type": "starcoder2"}
MISTRAL = {**QWEN, "model_type": "mistral", "sliding_window": 9}
MINISTRAL3 = {
    **QWEN, "model_type": "ministral3", "head_dim": 18,
    "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 1e4, "factor": 16.0, "mscale": 1.0,
        "mscale_all_dim": 1.0, "original_max_position_embeddings": 9, "llama_4_scaling_beta": 0.1,
    },
}  # fmt: skip
STABLELM = {**QWEN, "model_type": "stablelm", "partial_rotary_factor": 0.4}
NEMOTRON = {**QWEN, "model_type": "nemotron", "hidden_size": 48}
GPT2 = {"model_type": "gpt2", "vocab_size": 67, "n_embd": 56, "n_layer": 2, "n_head": 4,
        "n_positions": 60}  # fmt: skip
BLOOM = {"model_type": "bloom", "vocab_size": 67, "hidden_size": 60, "n_layer": 2, "n_head": 6}
MPT = {"model_type": "mpt", "vocab_size": 67, "d_model": 56, "n_layers": 2, "n_heads": 4}
SMOLLM = {**QWEN, "model_type": "smollm3", "num_hidden_layers": 5, "pad_token_id": 0}
GRANITE = {**QWEN, "model_type": "granite", "embedding_multiplier": 12, "logits_scaling": 8,
           "residual_multiplier": 0.22, "attention_multiplier": 0.4}  # fmt: skip
OLMO = {**QWEN, "model_type": "olmo2"}
OLMO3 = {**QWEN, "model_type": "olmo3", "num_hidden_layers": 5, "sliding_window": 9,
         "max_position_embeddings": 64}  # fmt: skip
EXAONE = {**QWEN, "model_type": "exaone4", "num_hidden_layers": 5, "sliding_window": 9,
          "rope_parameters": {"rope_theta": 1e6}}  # fmt: skip
EXAONE3 = {**QWEN, "model_type": "exaone"}
SEED = {**QWEN, "model_type": "seed_oss", "head_dim": 18}
ARCEE = {**QWEN, "model_type": "arcee"}
HUNYUAN = {**QWEN, "model_type": "hunyuan_v1_dense", "head_dim": 18}
ERNIE = {**QWEN, "model_type": "ernie4_5", "head_dim": 18}
GLM = {**QWEN, "model_type": "glm4", "head_dim": 20, "pad_token_id": 0}
PHI = {**QWEN, "model_type": "phi3", "pad_token_id": 0, "tie_word_embeddings": False}
LONG = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0, 1.1, 1.2, 1.5],
        "long_factor": [1.0, 2.0, 4.5, 9.0], "partial_rotary_factor": 0.8}  # fmt: skip
LLAMA3 = {"rope_type": "llama3", "rope_theta": 1e6, "factor": 16.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 64}  # fmt: skip
COHERE = {**QWEN, "model_type": "cohere", "pad_token_id": 0}
COHERE2 = {**COHERE, "model_type": "cohere2", "num_hidden_layers": 5, "sliding_window": 9}
GEMMA = {**QWEN, "model_type": "gemma", "head_dim": 18}
GEMMA2 = {**GEMMA, "model_type": "gemma2", "num_hidden_layers": 3, "sliding_window": 9,
          "query_pre_attn_scalar": 18}  # fmt: skip
GEMMA3 = {**GEMMA2, "model_type": "gemma3_text", "num_hidden_layers": 7}
GEMMA4 = {**QWEN, "model_type": "gemma4_text", "num_hidden_layers": 6, "head_dim": 18,
          "global_head_dim": 24, "sliding_window": 9, "hidden_size_per_layer_input": 12,
          "vocab_size_per_layer_input": 67, "num_kv_shared_layers": 3,
          "layer_types": [KINDS[kind] for kind in "wwfwwf"]}  # fmt: skip
MOE = {"enable_moe_block": True, "num_experts": 5, "top_k_experts": 2,
       "moe_intermediate_size": 29}  # fmt: skip
MAMBA = {"model_type": "mamba", "vocab_size": 67, "hidden_size": 40, "num_hidden_layers": 3,
         "state_size": 7}  # fmt: skip
MAMBA2 = {"model_type": "mamba2", "vocab_size": 67, "hidden_size": 42, "num_hidden_layers": 3,
          "state_size": 7, "num_heads": 6, "head_dim": 14, "n_groups": 2, "chunk_size": 16,
          "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
MIXTRAL = {**QWEN, "model_type": "mixtral", "num_local_experts": 5, "num_experts_per_tok": 2}
EXPERTS = {**QWEN, "num_experts": 7, "num_experts_per_tok": 3, "moe_intermediate_size": 29}
QWEN2MOE = {**EXPERTS, "model_type": "qwen2_moe", "shared_expert_intermediate_size": 51}
QWEN3MOE = {**EXPERTS, "model_type": "qwen3_moe", "head_dim": 18, "norm_topk_prob": True}
OLMOE = {**EXPERTS, "model_type": "olmoe", "pad_token_id": 0}
GRANITEMOE = {**GRANITE, "model_type": "granitemoe", "num_local_experts": 6,
              "num_experts_per_tok": 2}  # fmt: skip
GPT_OSS = {**QWEN, "model_type": "gpt_oss", "num_hidden_layers": 3, "head_dim": 18,
           "num_local_experts": 6, "num_experts_per_tok": 3, "sliding_window": 9,
           "rope_parameters": {"rope_type": "default", "rope_theta": 15e4}}  # fmt: skip
GRANITE4 = {**GRANITE, "model_type": "granitemoehybrid", "num_hidden_layers": 3,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "num_local_experts": 0, "shared_intermediate_size": 77, "mamba_n_heads": 8,
            "mamba_d_state": 7, "pad_token_id": 0}  # fmt: skip
LFM2 = {"model_type": "lfm2", "vocab_size": 67, "hidden_size": 48, "num_hidden_layers": 4,
        "num_attention_heads": 6, "num_key_value_heads": 2, "intermediate_size": 100,
        "block_multiple_of": 10, "full_attn_idxs": [1, 3], "pad_token_id": 0}  # fmt: skip
LFM2MOE = {**LFM2, "model_type": "lfm2_moe", "num_dense_layers": 1, "num_experts": 7,
           "num_experts_per_tok": 3, "moe_intermediate_size": 29,
           "layer_types": ["conv", "full_attention"] * 2}  # fmt: skip
DEEPSEEK2 = {**QWEN, "model_type": "deepseek_v2", "num_key_value_heads": 4, "num_hidden_layers": 3,
             "q_lora_rank": 34, "kv_lora_rank": 26, "qk_nope_head_dim": 14, "qk_rope_head_dim": 6,
             "v_head_dim": 11, "n_routed_experts": 7, "num_experts_per_tok": 3,
             "moe_intermediate_size": 29, "n_shared_experts": 2, "first_k_dense_replace": 1,
             "rms_norm_eps": 1e-6}  # fmt: skip
DEEPSEEK3 = {**DEEPSEEK2, "model_type": "deepseek_v3", "n_routed_experts": 12, "n_group": 4,
             "topk_group": 2, "n_shared_experts": 1, "num_mtp_layers": 0}  # fmt: skip
GLM4MOE = {**QWEN, "model_type": "glm4_moe", "head_dim": 20, "num_hidden_layers": 3,
           "n_routed_experts": 7, "num_experts_per_tok": 3, "moe_intermediate_size": 29,
           "use_qk_norm": True, "attention_bias": True, "num_mtp_layers": 0}  # fmt: skip
ERNIEMOE = {**QWEN, "model_type": "ernie4_5_moe", "num_hidden_layers": 3, "moe_num_experts": 7,
            "moe_k": 3, "moe_intermediate_size": 29}  # fmt: skip
DOTS1 = {**QWEN, "model_type": "dots1", "head_dim": 18, "num_hidden_layers": 3,
         "num_key_value_heads": 4, "n_routed_experts": 7, "num_experts_per_tok": 3,
         "moe_intermediate_size": 29,
         "n_shared_experts": 2, "first_k_dense_replace": 1, "norm_topk_prob": True}  # fmt: skip
MINIMAX = {**QWEN, "model_type": "minimax_m2", "head_dim": 18, "num_local_experts": 7,
           "num_experts_per_tok": 3, "rotary_dim": 12}  # fmt: skip
HUNYUANMOE = {**QWEN, "model_type": "hunyuan_v1_moe", "head_dim": 18, "num_experts": 7,
              "moe_topk": 3}  # fmt: skip
# Models that see, as small as they come.
EYE = {"depth": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 24,
       "out_hidden_size": 40}  # fmt: skip
TEXT = {**QWEN, "tie_word_embeddings": False,
        "rope_parameters": {"rope_theta": 1e4, "mrope_section": [1, 2, 2]}}  # fmt: skip
QWEN2VL = {"model_type": "qwen2_vl", "text_config": {**TEXT, "rms_norm_eps": 1e-12},
           "vision_config": {**EYE, "embed_dim": 16, "hidden_size": 40}}  # fmt: skip
QWEN25VL = {"model_type": "qwen2_5_vl", "text_config": TEXT, "vision_config": EYE}
DEEP = {"rope_theta": 1e4, "mrope_section": [3, 3, 3], "mrope_interleaved": True}
TEXT3 = {**TEXT, "head_dim": 18, "rope_parameters": DEEP}
SEEN = {**EYE, "deepstack_visual_indexes": [0]}
QWEN3VL = {"model_type": "qwen3_vl", "text_config": TEXT3, "vision_config": SEEN}
QWEN3VLMOE = {
    "model_type": "qwen3_vl_moe", "vision_config": SEEN,
    "text_config": {**TEXT3, "num_experts": 7, "num_experts_per_tok": 3,
                    "moe_intermediate_size": 29},
}  # fmt: skip
MINICPM3 = {**QWEN, "model_type": "minicpm3", "num_key_value_heads": 4, "q_lora_rank": 34,
            "kv_lora_rank": 26, "qk_nope_head_dim": 14, "qk_rope_head_dim": 8,
            "rms_norm_eps": 1e-6}  # fmt: skip
DELTA = {**QWEN, "num_hidden_layers": 3, "head_dim": 24, "linear_num_key_heads": 2,
         "linear_num_value_heads": 6, "linear_key_head_dim": 14, "linear_value_head_dim": 14,
         "layer_types": ["linear_attention", "full_attention", "linear_attention"]}  # fmt: skip
SHARED = {"num_experts": 7, "num_experts_per_tok": 3, "moe_intermediate_size": 29,
          "shared_expert_intermediate_size": 31}  # fmt: skip
QWEN3NEXT = {**DELTA, **SHARED, "model_type": "qwen3_next"}
QWEN35 = {**DELTA, "model_type": "qwen3_5_text"}
QWEN35MOE = {**DELTA, **SHARED, "model_type": "qwen3_5_moe_text"}
CONFIGS: dict[str, dict[str, Any]] = {
    "Falcon 7B": FALCON,
    "Falcon 40B": GROUPS,
    "Falcon 11B": {**GROUPS, "num_ln_in_parallel_attn": 1, "tie_word_embeddings": False},
    "Falcon, every head its own keys": {**FALCON, "multi_query": False, "ffn_hidden_size": 100},
    "Falcon, ReLU, another theta": {
        **FALCON, "activation": "relu", "rope_parameters": {"rope_theta": 5e5}
    },
    "OPT": OPT,
    "OPT, untied, GELU": {**OPT, "tie_word_embeddings": False, "activation_function": "gelu"},
    "Qwen 2": {**QWEN, "model_type": "qwen2"},
    "Qwen 2, a short window in the last layers, tied": {
        **QWEN, "model_type": "qwen2", "num_hidden_layers": 4, "use_sliding_window": True,
        "sliding_window": 9, "max_window_layers": 2, "tie_word_embeddings": True,
    },
    "Qwen 3": QWEN3,
    "Qwen 3, biases": {**QWEN3, "attention_bias": True, "num_key_value_heads": 1},
    "Qwen 3, a short window in some layers": {
        **QWEN3, "num_hidden_layers": 3, "use_sliding_window": True, "sliding_window": 9,
        "layer_types": [KINDS[kind] for kind in "wfw"],
    },
    "Qwen 3, tied, another theta": {
        **QWEN3, "tie_word_embeddings": True, "rope_parameters": {"rope_theta": 1e6}
    },
    "GPT-NeoX": NEOX,
    "GPT-NeoX, in turn, tanh": {
        **NEOX, "use_parallel_residual": False, "hidden_act": "gelu_new", "layer_norm_eps": 1e-3,
        "rotary_emb_base": 5e5,
    },
    "GPT-NeoX, an odd part": {**NEOX, "rotary_pct": 0.65},
    "GPT-NeoX, an odd part, stretched": {
        **NEOX, "hidden_size": 60,
        "rope_parameters": {"rope_type": "linear", "rope_theta": 5e3, "factor": 2.5,
                            "partial_rotary_factor": 0.2},
    },
    "Mistral": {**MISTRAL, "sliding_window": None},
    "Mistral, a short window": MISTRAL,
    "Ministral 3": MINISTRAL3,
    "Ministral 3, tied, a short window, hotter": {
        **MINISTRAL3, "tie_word_embeddings": True, "sliding_window": 9, "num_key_value_heads": 1,
        "rope_parameters": {
            **MINISTRAL3["rope_parameters"], "llama_4_scaling_beta": 0.7, "beta_fast": 4.0,
            "original_max_position_embeddings": 4, "mscale_all_dim": 0.5,
        },
    },
    "Phi 2": PHI2,
    "Phi 2, groups, GELU": {**PHI2, "num_key_value_heads": 2, "hidden_act": "gelu"},
    "Phi 2, tied": {**PHI2, "tie_word_embeddings": True},
    "StarCoder 2": STARCODER2,
    "StarCoder 2, untied": {**STARCODER2, "tie_word_embeddings": False, "sliding_window": 256},
    "StarCoder 2, a short window": {**STARCODER2, "sliding_window": 9},
    "StableLM": STABLELM,
    "StableLM, side by side": {**STABLELM, "use_parallel_residual": True, "use_qkv_bias": True},
    "StableLM, norms of heads": {**STABLELM, "use_parallel_residual": True, "qk_layernorm": True},
    "StableLM, norms of heads, in turn": {
        **STABLELM, "num_key_value_heads": 1, "qk_layernorm": True, "use_qkv_bias": True,
        "layer_norm_eps": 1e-3, "tie_word_embeddings": True,
    },
    "Nemotron": NEMOTRON,
    "Nemotron, wide heads, biases, tied": {
        **NEMOTRON, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True,
        "head_dim": 20, "norm_eps": 1e-3,
        "rope_parameters": {"rope_theta": 5e5, "partial_rotary_factor": 0.8},
    },
    "GPT-2": GPT2,
    "GPT-2, untied, GELU": {
        **GPT2, "n_inner": 77, "tie_word_embeddings": False, "activation_function": "gelu"
    },
    "BLOOM": BLOOM,
    "MPT": MPT,
    "MPT, seven heads": {**MPT, "n_heads": 7, "max_seq_len": 99, "layer_norm_epsilon": 1e-3},
    "SmolLM 3": SMOLLM,
    "SmolLM 3, a short window where there is no rope": {
        **SMOLLM, "use_sliding_window": True, "sliding_window": 9
    },
    "SmolLM 3, untied, biases": {
        **SMOLLM, "tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True
    },
    "Granite": GRANITE,
    "Granite, tied, biases": {
        **GRANITE, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True
    },
    "LLaMA, biases, as Granite's of code": {
        **QWEN, "model_type": "llama", "attention_bias": True, "mlp_bias": True
    },
    "OLMo 2": OLMO,
    "GLM 4": GLM,
    "GLM 4, no biases, whole heads": {
        **GLM, "attention_bias": False,
        "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 1.0},
    },
    "Phi 3": {**PHI, "original_max_position_embeddings": 256},
    "Phi 3, a wide window": {**PHI, "sliding_window": 256, "tie_word_embeddings": True},
    "Phi 3, a short window": {**PHI, "sliding_window": 9},
    "Phi 3, beyond its first context": {
        **PHI, "original_max_position_embeddings": 20, "rope_parameters": LONG
    },
    "Phi 3, within its first context": {
        **PHI, "original_max_position_embeddings": 256,
        "rope_parameters": {**LONG, "attention_factor": 1.3},
    },
    "Command R": COHERE,
    "Command R, untied, another scale": {
        **COHERE, "tie_word_embeddings": False, "logit_scale": 0.7,
        "rope_parameters": {"rope_theta": 1e4},
    },
    "Command R+, norms of heads, biases": {**COHERE, "use_qk_norm": True, "attention_bias": True},
    "Command R+, norms of heads, untied": {
        **COHERE, "use_qk_norm": True, "tie_word_embeddings": False, "num_key_value_heads": 1,
        "layer_norm_eps": 1e-3,
    },
    "Command R+, of 64 layers": {**COHERE, "use_qk_norm": True, "num_hidden_layers": 64},
    "Command R7B": COHERE2,
    "Command R7B, untied, other windows": {
        **COHERE2, "tie_word_embeddings": False, "num_hidden_layers": 3, "logit_scale": 0.7,
        "rope_parameters": {"rope_theta": 5e4},
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    },
    "OLMo 3": {**OLMO3, "rope_parameters": {"full_attention": {"rope_theta": 5e5}}},
    "OLMo 3, YaRN": {
        **OLMO3,
        "rope_parameters": {
            "full_attention": {
                "rope_type": "yarn", "rope_theta": 5e5, "factor": 4.0,
                "original_max_position_embeddings": 16,
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 5e5},
        },
    },
    "OLMo 3, YaRN, tied, another base in windows": {
        **OLMO3, "tie_word_embeddings": True,
        "rope_parameters": {
            "full_attention": {
                "rope_type": "yarn", "rope_theta": 5e5, "factor": 4.0,
                "original_max_position_embeddings": 16,
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    },
    "OLMo 3, other windows": {
        **OLMO3, "num_hidden_layers": 3,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
    },
    "EXAONE 3": EXAONE3,
    "EXAONE 3, tied, biases, Llama 3's rope": {
        **EXAONE3, "tie_word_embeddings": True, "attention_bias": True,
        "rope_parameters": LLAMA3,
    },
    "EXAONE 4, few layers": EXAONE,
    "EXAONE 4, few layers, other windows, tied": {
        **EXAONE, "num_hidden_layers": 3, "sliding_window_pattern": "LLLG", "rms_norm_eps": 1e-3,
        "layer_types": [KINDS[kind] for kind in "fww"], "tie_word_embeddings": True,
    },
    "EXAONE 4, of 64 layers": {**EXAONE, "num_hidden_layers": 64, "rope_parameters": LLAMA3},
    "EXAONE 4, no windows": {
        **EXAONE, "num_hidden_layers": 2, "sliding_window": None, "num_key_value_heads": 1,
        "layer_types": [KINDS["f"]] * 2,
    },
    "Seed-OSS": SEED,
    "Seed-OSS, tied, a bias of the output, YaRN": {
        **SEED, "tie_word_embeddings": True, "attention_out_bias": True, "num_key_value_heads": 1,
        "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0,
                            "original_max_position_embeddings": 16},
    },
    "Seed-OSS, no biases, another eps": {**SEED, "attention_bias": False, "rms_norm_eps": 1e-3},
    "Arcee AFM": ARCEE,
    "Arcee AFM, tied, biases, wide heads, YaRN": {
        **ARCEE, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True,
        "head_dim": 18, "num_key_value_heads": 1,
        "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 20.0,
                            "original_max_position_embeddings": 16},
    },
    "Hunyuan": HUNYUAN,
    "Hunyuan, tied, an alpha": {
        **HUNYUAN, "tie_word_embeddings": True, "num_key_value_heads": 1, "rms_norm_eps": 1e-3,
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "alpha": 1000.0,
                            "factor": 1.0},
    },
    "ERNIE 4.5": ERNIE,
    "ERNIE 4.5, untied, another theta": {
        **ERNIE, "tie_word_embeddings": False, "rope_parameters": {"rope_theta": 1e4}
    },
    "OLMo 2, tied, another theta, biases": {
        **OLMO, "attention_bias": True, "tie_word_embeddings": True,
        "rope_parameters": {"rope_theta": 5e5},
    },
    "Mixtral": MIXTRAL,
    "Mixtral, tied, four of nine": {
        **MIXTRAL, "tie_word_embeddings": True, "num_local_experts": 9, "num_experts_per_tok": 4
    },
    "Qwen 2, experts": QWEN2MOE,
    "Qwen 2, experts, weights of sum 1": {**QWEN2MOE, "norm_topk_prob": True},
    "Qwen 2, experts, a short window, every other layer dense": {
        **QWEN2MOE, "num_hidden_layers": 5, "decoder_sparse_step": 2, "use_sliding_window": True,
        "sliding_window": 9, "max_window_layers": 4,
    },
    "Qwen 3, experts": QWEN3MOE,
    "Qwen 3, experts, a short window, two layers dense": {
        **QWEN3MOE, "num_hidden_layers": 4, "mlp_only_layers": [0, 2], "use_sliding_window": True,
        "sliding_window": 9,
    },
    "Qwen 3, experts, tied, all of four": {
        **QWEN3MOE, "tie_word_embeddings": True, "num_experts": 4, "num_experts_per_tok": 4
    },
    "Qwen 3, experts, weights as they are": {**QWEN3MOE, "norm_topk_prob": False},
    "OLMoE": OLMOE,
    "OLMoE, groups, biases, weights of sum 1": {
        **OLMOE, "attention_bias": True, "num_key_value_heads": 1, "norm_topk_prob": True,
        "num_experts_per_tok": 1,
    },
    "gpt-oss": GPT_OSS,
    "gpt-oss, tied, YaRN between pairs": {
        **GPT_OSS, "tie_word_embeddings": True, "max_position_embeddings": 64,
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        "rope_parameters": {"rope_type": "yarn", "rope_theta": 15e4, "factor": 2.0,
                            "truncate": False, "original_max_position_embeddings": 32},
    },
    "Granite, experts": GRANITEMOE,
    "Granite, experts, biases": {**GRANITEMOE, "attention_bias": True},
    "Granite, experts, a shared network": {
        **GRANITEMOE, "model_type": "granitemoeshared", "shared_intermediate_size": 23
    },
    "DeepSeek-V2": DEEPSEEK2,
    "DeepSeek-V2, no vector of queries, a scale": {
        **DEEPSEEK2, "q_lora_rank": None, "first_k_dense_replace": 0, "n_shared_experts": 1,
        "routed_scaling_factor": 2.5, "tie_word_embeddings": True,
        "rope_parameters": {"rope_theta": 500.0, "rope_type": "default"},
    },
    "DeepSeek-V2, YaRN": {
        **DEEPSEEK2, "qk_rope_head_dim": 16, "first_k_dense_replace": 2,
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "mscale": 0.707,
            "mscale_all_dim": 0.707, "original_max_position_embeddings": 16,
        },
    },
    "DeepSeek V3": DEEPSEEK3,
    "DeepSeek V3, no groups, YaRN, any sum of weights": {
        **DEEPSEEK3, "qk_rope_head_dim": 16, "n_group": 1, "topk_group": 1, "q_lora_rank": None,
        "norm_topk_prob": False, "first_k_dense_replace": 2, "tie_word_embeddings": True,
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "mscale": 1.0,
            "mscale_all_dim": 1.0, "original_max_position_embeddings": 16,
        },
    },
    "MiniCPM 3": MINICPM3,
    "MiniCPM 3, untied, long rope, scales and an eps of its own": {
        **MINICPM3, "tie_word_embeddings": False, "v_head_dim": 11, "rms_norm_eps": 1e-3,
        "scale_emb": 3, "scale_depth": 0.8, "dim_model_base": 24, "num_hidden_layers": 3,
        "rope_parameters": {**LONG, "partial_rotary_factor": 1.0, "factor": 1.0,
                            "original_max_position_embeddings": 256},
    },
    "GLM 4.5, experts": GLM4MOE,
    "GLM 4.5, experts, no biases and norms, groups": {
        **GLM4MOE, "use_qk_norm": False, "attention_bias": False, "n_routed_experts": 9,
        "n_group": 3, "topk_group": 2, "n_shared_experts": 2, "first_k_dense_replace": 0,
        "routed_scaling_factor": 2.5, "tie_word_embeddings": True, "rms_norm_eps": 1e-3,
        "rope_parameters": {"rope_theta": 1e6, "partial_rotary_factor": 1.0},
    },
    "dots.llm1": DOTS1,
    "dots.llm1, any sum of weights, groups, tied": {
        **DOTS1, "norm_topk_prob": False, "n_routed_experts": 9, "n_group": 3, "topk_group": 2,
        "n_shared_experts": 1, "routed_scaling_factor": 2.5, "tie_word_embeddings": True,
        "attention_bias": True, "num_key_value_heads": 1,
    },
    "MiniMax M2": MINIMAX,
    "MiniMax M2, whole heads, tied": {
        **MINIMAX, "rotary_dim": None, "tie_word_embeddings": True, "num_experts_per_tok": 1,
        "num_key_value_heads": 1, "rms_norm_eps": 1e-3,
    },
    "Hunyuan, experts": HUNYUANMOE,
    "Hunyuan, experts, tied, an alpha": {
        **HUNYUANMOE, "tie_word_embeddings": True, "num_key_value_heads": 1,
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "alpha": 1000.0,
                            "factor": 1.0},
    },
    "Qwen 2 VL, text": QWEN2VL,
    "Qwen 2.5 VL, text": QWEN25VL,
    "Qwen 3 VL, text": QWEN3VL,
    "Qwen 3 VL, text, experts": QWEN3VLMOE,
    "ERNIE 4.5, experts": ERNIEMOE,
    "ERNIE 4.5, experts, untied, none shared, all mixtures": {
        **ERNIEMOE, "tie_word_embeddings": False, "moe_num_shared_experts": 0,
        "moe_layer_start_index": 0, "rms_norm_eps": 1e-3,
    },
    "Gemma": GEMMA,
    "Gemma, untied, biases": {**GEMMA, "tie_word_embeddings": False, "attention_bias": True},
    "Gemma 2": {**GEMMA2, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    "Gemma 2, no caps": {
        **GEMMA2, "attn_logit_softcapping": None, "final_logit_softcapping": None, "head_dim": 12,
        "query_pre_attn_scalar": 12,
    },
    "Gemma 2, other windows": {
        **GEMMA2, "layer_types": ["full_attention", "sliding_attention", "sliding_attention"]
    },
    "Gemma 2, a query scale": {**GEMMA2, "query_pre_attn_scalar": 7},
    "Gemma 3": GEMMA3,
    "Gemma 3, stretched, untied, a cap": {
        **GEMMA3, "tie_word_embeddings": False, "final_logit_softcapping": 3.0,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
        },
    },
    "Gemma 3, a window in every other layer": {
        **GEMMA3, "num_hidden_layers": 4, "sliding_window_pattern": 2, "sliding_window": 3
    },
    "Gemma 4": {**GEMMA4, "final_logit_softcapping": 3.0},
    "Gemma 4, wide networks, other layers": {
        **GEMMA4, "use_double_wide_mlp": True, "num_kv_shared_layers": 2, "num_hidden_layers": 5,
        "layer_types": [KINDS[kind] for kind in "fwwwf"], "num_key_value_heads": 1,
        "rms_norm_eps": 1e-3,
    },
    "Gemma 4, keys alone, no embeddings of layers, untied": {
        **GEMMA4, "attention_k_eq_v": True, "num_global_key_value_heads": 1,
        "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0, "tie_word_embeddings": False,
        "num_hidden_layers": 3, "layer_types": [KINDS[kind] for kind in "wwf"],
        "rope_parameters": {
            "full_attention": {"rope_type": "proportional", "rope_theta": 5e5,
                               "partial_rotary_factor": 0.5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
        },
    },
    "Gemma 4, experts": {**GEMMA4, **MOE, "final_logit_softcapping": 3.0},
    "Gemma 4, experts, untied, no embeddings of layers": {
        **GEMMA4, **MOE, "num_experts": 9, "top_k_experts": 1, "hidden_size_per_layer_input": 0,
        "num_kv_shared_layers": 0, "attention_k_eq_v": True, "num_global_key_value_heads": 1,
        "tie_word_embeddings": False, "num_hidden_layers": 3,
        "layer_types": [KINDS[kind] for kind in "wwf"],
    },
    "Gemma 4, all experts, wide networks": {
        **GEMMA4, **MOE, "top_k_experts": 5, "use_double_wide_mlp": True, "rms_norm_eps": 1e-3,
    },
    "Mamba": MAMBA,
    "Mamba, untied, other sizes": {
        **MAMBA, "tie_word_embeddings": False, "conv_kernel": 3, "time_step_rank": 5,
        "state_size": 16, "expand": 1, "layer_norm_epsilon": 1e-3,
    },
    "Mamba 2": MAMBA2,
    "Mamba 2, one group, tied": {
        **MAMBA2, "n_groups": 1, "tie_word_embeddings": True, "conv_kernel": 3, "expand": 1,
        "num_heads": 3, "layer_norm_epsilon": 1e-3,
    },
    "LFM 2": LFM2,
    "LFM 2, untied, other sizes": {
        **LFM2, "tie_word_embeddings": False, "conv_L_cache": 5, "norm_eps": 1e-3,
        "block_auto_adjust_ff_dim": False, "full_attn_idxs": [0],
        "rope_parameters": {"rope_theta": 500.0, "rope_type": "default"},
    },
    "Granite 4": GRANITE4,
    "Granite 4, experts, two groups, rope, biases, tied": {
        **GRANITE4, "num_local_experts": 6, "num_experts_per_tok": 2, "mamba_n_groups": 2,
        "position_embedding_type": "rope", "attention_bias": True, "tie_word_embeddings": True,
        "mamba_d_conv": 3, "rms_norm_eps": 1e-3,
    },
    "Granite 4, attention alone": {
        **GRANITE4, "layer_types": ["full_attention"] * 3, "position_embedding_type": "rope",
    },
    "Granite 4, attention alone, experts": {
        **GRANITE4, "layer_types": ["full_attention"] * 3, "position_embedding_type": "rope",
        "num_local_experts": 6, "num_experts_per_tok": 2,
    },
    "LFM 2, experts": LFM2MOE,
    "LFM 2, experts, untied, all mixtures, a scale": {
        **LFM2MOE, "tie_word_embeddings": False, "num_dense_layers": 0, "conv_L_cache": 5,
        "routed_scaling_factor": 2.5, "use_expert_bias": False,
    },
    "Qwen 3 Next": QWEN3NEXT,
    "Qwen 3 Next, every fourth layer, tied": {
        **QWEN3NEXT, "layer_types": None, "num_hidden_layers": 4, "tie_word_embeddings": True,
        "linear_conv_kernel_dim": 3, "linear_num_value_heads": 2,
        "rope_parameters": {"rope_theta": 1e6, "partial_rotary_factor": 0.5},
    },
    "Qwen 3 Next, one layer dense": {**QWEN3NEXT, "mlp_only_layers": [1], "num_experts": 4},
    "Qwen 3 Next, weights as they are": {**QWEN3NEXT, "norm_topk_prob": False},
    "Qwen 3.5": QWEN35,
    "Qwen 3.5, tied, whole heads": {
        **QWEN35, "tie_word_embeddings": True, "linear_num_key_heads": 3,
        "rope_parameters": {"rope_theta": 1e6, "partial_rotary_factor": 1.0},
    },
    "Qwen 3.5, experts": QWEN35MOE,
    "Gemma 3, no window": {**GEMMA3, "num_hidden_layers": 2, "sliding_window_pattern": 1},
}  # fmt: skip
