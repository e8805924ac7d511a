"""tensorizer's own tests, run against tensorizer or against our door; run by the Python of an environment that has both.

    tensorizer_tests.py TESTS {tensorizer|sluice.tensorizer} OUT.json

TESTS is the folder of that name in tensorizer's source distribution. Its files are copied to a temporary folder and changed in these
ways alone: the import lines name the package; what they look up of tensorizer's private names is asked of the functions below; the
page that they fetch from the internet comes from a server here. Models of the hub are small ones with random weights. OUT.json gets
{name of a test: "passed", "skipped: …" or the last line of its first failure}.
"""
import http.server
import importlib
import json
import logging
import os
import re
import struct
import sys
import tempfile
import threading
import traceback
import types
import unittest

PAGE = b"# GPT Neo\n\n[![DOI](https://example.org/badge)](https://example.org/)\n"
FILES = ("test_serialization", "test_stream_io", "test_torch_compat")
# What is not there for either of them.
NETWORK = {
    "test_s3": "a public bucket", "test_s3_fp16": "a public bucket", "test_s3_lazy_load": "a public bucket",
    "test_s3_multiple_readers": "a public bucket", "test_redis": "a public bucket",
}
HELD_BYTES = {"test_large_unbuffered_tensor": 10 << 30, "test_long_dimensions": 9 << 30}
# Private names of tensorizer in its tests, and what is asked instead.
PRIVATE = (
    (r"deserializer\._file_header\.version_number", "harness.version_of(deserializer)"),
    (r"\bd\._file_header\.version_number", "harness.version_of(d)"),
    (r"serialization\._FileFeatureFlags\.encrypted", "harness.ENCRYPTED"),
    (r"deserializer\._file_flags", "harness.flags_of(deserializer)"),
    (r"tensorizer\.torch_compat\._FileLike", "object"),
    (r"torch_compat\._LOAD_WRAPPER_DEFAULT_MODULE", "harness.DEFAULT_PICKLE"),
    (r"(?m)^( *)@patch\.object\(stream_io, \"_s3_default_config_paths\", \(\)\)\n", ""),
    (r"from tensorizer\._crypt import available as encryption_available", "encryption_available = True"),
)


# ---- the files ------------------------------------------------------------------------------------


def changed(text, package, page):
    """A file of tests, for a package."""
    for pattern, instead in PRIVATE:
        text = re.sub(pattern, instead, text)
    text = re.sub(r"(?m)^import tensorizer\.(\w+) as (\w+)$", rf"import {package}.\1 as \2", text)
    text = re.sub(r"(?m)^import tensorizer$", f"import {package} as tensorizer", text)
    text = re.sub(r"(?m)^( *)from tensorizer\b", rf"\1from {package}", text)
    text = re.sub(r'NEO_URL = \(\n.*?\n\)', f'NEO_URL = "{page}"', text, flags=re.S)
    return "import tensorizer_tests as harness\n" + text


class Ranges(http.server.BaseHTTPRequestHandler):
    """One page, whole or a range of it."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self):
        self.answer(False)

    def do_GET(self):
        self.answer(True)

    def answer(self, with_body):
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        first, last = (int(asked[1]), min(int(asked[2] or len(PAGE)), len(PAGE) - 1)) if asked else (0, len(PAGE) - 1)
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(PAGE)}")
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", '"page"')
        self.send_header("Content-Length", str(last + 1 - first))
        self.end_headers()
        if with_body:
            self.wfile.write(PAGE[first: last + 1])

    def log_message(self, *arguments):
        """Nothing."""


# ---- what stands in for private names ---------------------------------------------------------------

ENDPOINT = "object.ord1.coreweave.com"  # tensorizer's own
ENCRYPTED = "encrypted"
DEFAULT_PICKLE = None


def header_of(deserializer):
    """(data version, flags) as tensorizer has parsed them, or from the file."""
    if hasattr(deserializer, "_file_header"):
        return deserializer._file_header.version_number, int(deserializer._file_flags)
    with open(deserializer._place.uri, "rb") as file:
        head = file.read(64)
    assert head[:5] == b"|TZR|"
    version, flags = struct.unpack_from("<I", head, 5)[0], struct.unpack_from("<Q", head, 9)[0]
    return version, flags if version >= 4 or version == 3 else 0


def version_of(deserializer):
    return header_of(deserializer)[0]


def flags_of(deserializer):
    return {ENCRYPTED} if header_of(deserializer)[1] & 1 else set()


# ---- models that nobody downloads -------------------------------------------------------------------


class Hellos:
    """A tokenizer of one word."""

    eos_token_id = 0

    def encode(self, text, return_tensors):
        import torch

        return torch.ones((1, text.count("hello")), dtype=torch.long)

    def decode(self, tokens, skip_special_tokens=False):
        return " hello" * len(tokens)


def config():
    import transformers

    return transformers.GPTNeoConfig(
        hidden_size=256, num_layers=4, attention_types=[[["global", "local"], 2]], num_heads=4, vocab_size=50257,
        max_position_embeddings=2048,
    )


def stand_in():
    """Models of the hub are made here, always the same."""
    import torch
    import transformers

    def model(name):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return transformers.AutoModelForCausalLM.from_config(config()).eval()

    transformers.AutoModelForCausalLM.from_pretrained = staticmethod(model)
    transformers.AutoConfig.from_pretrained = staticmethod(lambda name: config())
    transformers.AutoTokenizer.from_pretrained = staticmethod(lambda name: Hellos())


def hide_pinned_moto():
    """tensorizer's tests are for moto before version 5; where there is none, those of S3 are skipped."""
    for name in ("moto", "moto.server", "werkzeug", "werkzeug.serving"):
        try:
            __import__(name)
        except ImportError:
            sys.modules[name] = types.ModuleType(name)


# ---- the run ----------------------------------------------------------------------------------------


class Outcome(unittest.TestResult):
    """How each test ended."""

    def __init__(self):
        super().__init__()
        self.found = {}

    def say(self, test, what):
        name = test.id()  # "module.Class.test", or of a class that could not begin: "setUpClass (module.Class)"
        name = name.split("(")[1].rstrip(")") + "." + name.split(" ")[0] if name.endswith(")") else name
        name = name.split(".", 1)[1]
        if self.found.get(name, "passed") == "passed":
            self.found[name] = what
        print(f"{name}: {what}", flush=True)

    def wrong(self, test, error):
        at = [frame for frame in traceback.extract_tb(error[2]) if os.path.basename(frame.filename).startswith("test_")]
        line = f" ({at[-1].line})" if at else ""
        said = str(error[1]).strip().splitlines() or [""]
        self.say(test, f"{error[0].__name__}: {said[0][:300]}{line}")
        if os.environ.get("TRACE"):
            traceback.print_exception(*error)

    def addSuccess(self, test):
        self.say(test, "passed")

    def addSkip(self, test, reason):
        self.say(test, f"skipped: {reason}")

    def addError(self, test, error):
        self.wrong(test, error)

    def addFailure(self, test, error):
        self.wrong(test, error)

    def addSubTest(self, test, subtest, error):
        if error is not None:
            self.wrong(subtest.test_case, error)


def memory_available():
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable:"))


def leave_out(suite):
    """Skip what this machine cannot run."""
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            leave_out(test)
            continue
        name = getattr(test, "_testMethodName", "")
        reason = NETWORK.get(name)
        if HELD_BYTES.get(name, 0) > memory_available() // 3:
            reason = "more memory than this machine has free"
        if reason:
            setattr(test, name, skipping(reason))


def skipping(reason):
    def skip(*arguments):
        raise unittest.SkipTest(reason)

    return skip


def main():
    tests, package, out = os.path.abspath(sys.argv[1]), sys.argv[2], os.path.abspath(sys.argv[3])
    wanted = sys.argv[4:]
    logging.disable(logging.CRITICAL)
    sys.modules["tensorizer_tests"] = sys.modules["__main__"]
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Ranges)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    stand_in()
    hide_pinned_moto()
    os.environ["AWS_REQUEST_CHECKSUM_CALCULATION"] = "when_required"  # moto would keep the encoding of uploads
    streams = importlib.import_module(package + ".stream_io")
    streams.default_s3_read_endpoint = streams.default_s3_write_endpoint = ENDPOINT
    outcome, loader = Outcome(), unittest.TestLoader()
    with tempfile.TemporaryDirectory() as folder:
        for name in FILES:
            with open(os.path.join(tests, name + ".py")) as file:
                text = changed(file.read(), package, f"http://127.0.0.1:{server.server_port}/README.md")
            with open(os.path.join(folder, name + ".py"), "w") as file:
                file.write(text)
        sys.path.insert(0, folder)
        os.chdir(folder)
        if wanted:
            loader.testNamePatterns = [f"*{word}*" for word in wanted]
        suite = loader.loadTestsFromNames(FILES)
        leave_out(suite)
        suite.run(outcome)
    with open(out, "w") as file:
        json.dump(outcome.found, file, indent=1, sort_keys=True)


if __name__ == "__main__":
    main()
