"""As much of real SGLang as runs without its kernels: its plugins, its command line, its configuration and its loader, with a small module.

    sglang_loader.py FOLDER CHECKPOINT     FOLDER has a config.json; run by the Python of an environment that has SGLang; prints what was loaded as JSON
"""
import argparse
import json
import sys
import types

import torch


class Small(torch.nn.Module):
    """Two tensors of a checkpoint in one of its own, as SGLang's layers have them."""

    def __init__(self):
        super().__init__()
        self.qk = torch.nn.Parameter(torch.zeros(4, 2))

    def load_weights(self, weights):
        found = dict(weights)
        with torch.no_grad():
            self.qk.copy_(torch.cat([found["q"], found["k"]]))
        return {"qk"}


def main(folder, checkpoint):
    from sglang.srt.plugins import load_plugins

    load_plugins()  # before arguments are parsed, as SGLang does
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.model_loader import loader as loaders
    from sglang.srt.runtime_context import publish
    from sglang.srt.server_args import ServerArgs

    import sluice.sglang

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    words = ["--model-path", "x", "--load-format", "sluice", "--model-loader-extra-config", json.dumps({"uri": checkpoint})]
    given = parser.parse_args(words)
    config = LoadConfig(load_format=given.load_format, model_loader_extra_config=given.model_loader_extra_config)
    loader, model = loaders.get_model_loader(config), Small()
    place = types.SimpleNamespace(model_path="x", revision=None)
    loaders.DefaultModelLoader.load_weights_and_postprocess(model, loader._get_all_weights(place, model), torch.device("cpu"))
    publish(ServerArgs(model_path=folder, device="cpu"), role="scheduler")
    drafts = [sluice.sglang._is_draft(types.SimpleNamespace(model_path=path, is_draft_model=True)) for path in (folder, "other")]
    print("RESULT", json.dumps({"loader": type(loader).__name__, "is": isinstance(loader, loaders.DefaultModelLoader), "qk": model.qk.tolist(), "drafts": drafts}))


if __name__ == "__main__":
    main(*sys.argv[1:])
