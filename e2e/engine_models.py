"""Tiny models of transformers and diffusers with random weights, and how they are loaded; run by the Python of an environment that has them.

    engine_models.py llama DIR               config, weights, tokenizer
    engine_models.py wide-llama DIR [SEED]   the same with tensors of some MiB
    engine_models.py adapter DIR BASE        a LoRA adapter of wide-llama, for a base model of this name
    engine_models.py same-llama DIR URI …    each URI, a path or pool:SOCKET gives the model of DIR: prints how many did
    engine_models.py named-llama DIR NAME    transformers finds the model of DIR by a name of the hub
    engine_models.py diffuser DIR            a pipeline of two components
    engine_models.py same-diffuser DIR URI   the blocks of docs/engines.md on it: the pictures are equal
"""
import json
import os
import sys
import tempfile

import torch

WORDS = ("once", "upon", "a", "time", "there", "was", "model", "<unk>")


def wide_llama(place, seed=1):
    llama(place, seed, vocab_size=4096, hidden_size=1024, intermediate_size=2048, num_attention_heads=16, num_key_value_heads=8)


def llama(place, seed=1, **sizes):
    import tokenizers
    import transformers

    torch.manual_seed(int(seed))
    tiny = {"vocab_size": len(WORDS), "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.LlamaConfig(**{**tiny, **sizes}, num_hidden_layers=2, bos_token_id=0, eos_token_id=None, pad_token_id=7)
    transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(place)
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>").save_pretrained(place)


def adapter(place, base):
    import safetensors.torch

    torch.manual_seed(3)
    sizes = {"q_proj": 1024, "v_proj": 512}
    tensors = {}
    for layer in range(2):
        for name, size in sizes.items():
            front = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[front + ".lora_A.weight"], tensors[front + ".lora_B.weight"] = torch.randn(8, 1024) / 8, torch.randn(size, 8)
    safetensors.torch.save_file(tensors, os.path.join(place, "adapter_model.safetensors"))
    with open(os.path.join(place, "adapter_config.json"), "w") as file:
        json.dump({"peft_type": "LORA", "r": 8, "lora_alpha": 16, "bias": "none", "target_modules": list(sizes), "base_model_name_or_path": base}, file)


def opened(where):
    import sluice.transformers

    if where.startswith("pool:"):
        return sluice.transformers.from_pool("m", socket=where[5:], timeout=60)
    return sluice.transformers.from_pretrained(where)


def same_llama(place, *places):
    import transformers

    tokens = torch.tensor([[0, 1, 2, 3]])
    wanted = transformers.LlamaForCausalLM.from_pretrained(place, dtype="auto")
    with torch.no_grad():
        logits = wanted(tokens).logits
        for where in places:
            model = opened(where)
            assert type(model) is type(wanted) and model.dtype == torch.bfloat16, (type(model), model.dtype)
            assert torch.equal(model(tokens).logits, logits), where
            state = model.state_dict()
            assert all(torch.equal(tensor, state[name]) for name, tensor in wanted.state_dict().items())
    print(len(places))


def named_llama(place, name):
    """HF_HUB_CACHE says where, HF_HUB_OFFLINE that nobody may be asked."""
    import transformers

    wanted, found = (transformers.AutoModelForCausalLM.from_pretrained(where, dtype="auto").state_dict() for where in (place, name))
    assert wanted.keys() == found.keys() and all(torch.equal(tensor, found[key]) for key, tensor in wanted.items()), name
    words = "once upon a time"
    assert transformers.AutoTokenizer.from_pretrained(name)(words)["input_ids"] == [0, 1, 2, 3]
    print(len(found))


def diffuser(place):
    import diffusers

    torch.manual_seed(1)
    unet = diffusers.UNet2DModel(sample_size=8, in_channels=3, out_channels=3, layers_per_block=1, block_out_channels=(8, 16), norm_num_groups=4,
                                 down_block_types=("DownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "UpBlock2D"))
    diffusers.DDPMPipeline(unet, diffusers.DDPMScheduler(num_train_timesteps=10)).save_pretrained(place)


def same_diffuser(place, uri):
    import diffusers
    import sluice

    def picture(pipe):
        pipe.set_progress_bar_config(disable=True)
        return pipe(generator=torch.Generator().manual_seed(5), num_inference_steps=2, output_type="np").images

    with tempfile.TemporaryDirectory() as folder:
        sluice.pull(uri, os.path.join(folder, "sdxl"), exclude=["*.safetensors", "*.bin"])
        unet = diffusers.UNet2DModel.from_config(os.path.join(folder, "sdxl", "unet"))
        sluice.load_into_module(unet.eval(), uri + "unet/")
        pipe = diffusers.DDPMPipeline.from_pretrained(os.path.join(folder, "sdxl"), unet=unet)
    wanted = diffusers.DDPMPipeline.from_pretrained(place)
    assert all(torch.equal(tensor, wanted.unet.state_dict()[name]) for name, tensor in unet.state_dict().items())
    assert abs(picture(pipe) - picture(wanted)).max() < 1e-5  # where weights lie in memory decides how torch adds them up
    print("equal")


def main(which, *words):
    {"llama": llama, "wide-llama": wide_llama, "adapter": adapter, "same-llama": same_llama, "named-llama": named_llama, "diffuser": diffuser, "same-diffuser": same_diffuser}[which](*words)


if __name__ == "__main__":
    main(*sys.argv[1:])
