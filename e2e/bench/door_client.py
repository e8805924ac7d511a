"""One trial of doors.py: door_client.py CLIENT URI {whole|tensor|slice}. Prints one line of JSON.

As much memory as SLUICE_WARM_BYTES is used and given back before: a virtual machine's free memory may have to come from its host first, which
costs whoever takes it first more than anything that is measured here.
"""
import json
import mmap
import os
import resource
import sys
import time

import torch

NAME = "layer.1"
KEPT = []


def touch(tensor):
    """Every byte of it is there."""
    return int(tensor.detach().contiguous().view(-1).view(torch.uint8).view(torch.int64).sum())


def rows(tensor):
    return tensor[: max(tensor.shape[0] // 100, 1)]


def sluice_(uri, work, **options):
    import sluice

    def run():
        if work == "whole":
            yield from sluice.load(uri, **options).values()
        else:
            with sluice.open(uri, framework="torch", **options) as model:
                yield model[NAME] if work == "tensor" else rows_of(model)

    def rows_of(model):
        part = model.slice(NAME)
        return part[: max(model.meta(NAME).shape[0] // 100, 1)]

    return run


def unchecked_(uri, work):
    return sluice_(uri, work, verify="off")


def stream_(uri, work):
    import sluice

    return lambda: (tensor for _, tensor in sluice.stream(uri))


def tensorizer_(uri, work):
    from tensorizer import TensorDeserializer

    from tensorizer.stream_io import open_stream

    def run():
        wanted = None if work == "whole" else lambda name: name == NAME
        address = os.environ.get("AWS_ENDPOINT_URL", "").removeprefix("http://")
        keys = {"s3_access_key_id": os.environ.get("AWS_ACCESS_KEY_ID"), "s3_secret_access_key": os.environ.get("AWS_SECRET_ACCESS_KEY"),
                "s3_endpoint": address, "force_http": True, "s3_region_name": os.environ.get("AWS_REGION")}
        with TensorDeserializer(open_stream(uri, **keys) if uri.startswith("s3:") else uri, device="cpu", filter_func=wanted, num_readers=None) as found:
            yield from list(found.values())

    return run


def safetensors_(uri, work):
    from safetensors import safe_open

    def run():
        with safe_open(uri, framework="pt") as file:
            if work == "slice":
                part = file.get_slice(NAME)
                yield part[: max(part.get_shape()[0] // 100, 1)]
                return
            for name in file.keys() if work == "whole" else [NAME]:
                yield file.get_tensor(name)

    return run


def runai_(uri, work):
    from runai_model_streamer import SafetensorsStreamer

    def run():
        with SafetensorsStreamer() as streamer:
            streamer.stream_file(uri)
            for _, tensor in streamer.get_tensors():
                yield tensor

    return run


def fastsafetensors_(uri, work):
    from fastsafetensors import fastsafe_open

    def run():
        with fastsafe_open([uri], device="cpu", nogds=True) as file:
            for name in list(file.keys()) if work == "whole" else [NAME]:
                yield file.get_tensor(name)

    return run


def torch_(uri, work):
    def run():
        found = torch.load(uri, mmap=True, weights_only=True)
        yield from found.values() if work == "whole" else [found[NAME] if work == "tensor" else rows(found[NAME])]

    return run


def zipslicer_(uri, work):
    import zipslicer

    def run():
        found = zipslicer.load(uri)
        for name in list(found.keys()) if work == "whole" else [NAME]:
            yield found[name]

    return run


CLIENTS = {"sluice": sluice_, "sluice.stream": stream_, "sluice.unchecked": unchecked_, "tensorizer": tensorizer_, "safetensors": safetensors_, "runai": runai_,
           "fastsafetensors": fastsafetensors_, "torch.load": torch_, "zipslicer": zipslicer_}


def processor_seconds():
    used = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime + children.ru_utime + children.ru_stime


def most_kib():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM:"))


def warm(count):
    """Memory that the machine has at hand then."""
    if count:
        with mmap.mmap(-1, count) as memory:
            for at in range(0, count, mmap.PAGESIZE):
                memory[at] = 1


def main():
    client, uri, work = sys.argv[1:]
    warm(int(os.environ.get("SLUICE_WARM_BYTES", 0)))
    run = CLIENTS[client.split(" ")[0]](uri, work)
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    before, used, begin, first, count = most_kib(), processor_seconds(), time.monotonic(), None, 0
    for tensor in run():
        touch(tensor)
        first = first or time.monotonic() - begin
        count += tensor.numel() * tensor.element_size()
        KEPT.append(tensor)
    seconds = time.monotonic() - begin
    print(json.dumps({"seconds": seconds, "first": first, "bytes": count, "cpu": processor_seconds() - used,
                      "peak_bytes": (most_kib() - before) << 10}))


if __name__ == "__main__":
    main()
