"""An adapter that sluice fetched, asked for and read by SGLang's own classes, as its route /load_lora_adapter has them.

    sglang_adapter.py URI DIR NAME FOLDER     FOLDER has the config.json of the base model; run by the Python of an environment that has SGLang; prints as JSON what it took from which tensor
"""
import json
import sys
import types


def main(uri, directory, name, folder):
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.lora.lora import LoRAAdapter
    from sglang.srt.lora.lora_config import LoRAConfig
    from sglang.srt.managers.io_struct import LoadLoRAAdapterReqInput
    from sglang.srt.runtime_context import publish
    from sglang.srt.server_args import ServerArgs

    import sluice.lora

    found = sluice.lora.Adapters(uri, directory).fetch(name, base=folder)
    publish(ServerArgs(model_path=folder, device="cpu"), role="scheduler")  # its loader asks them whether files are to be verified
    reference = LoadLoRAAdapterReqInput(lora_name=name, lora_path=found.path, lora_id="1").to_ref()
    layers = types.SimpleNamespace(num_hidden_layers=1)
    adapter = LoRAAdapter(reference.lora_name, LoRAConfig(reference.lora_path), layers, LoadConfig(load_format="auto"), None)
    adapter.initialize_weights()
    sums = {key: float(tensor.double().sum()) for key, tensor in adapter.layers[0].weights.items()}
    print("RESULT", json.dumps({"name": reference.lora_name, "rank": adapter.config.r, "sums": sums}))


if __name__ == "__main__":
    main(*sys.argv[1:])
