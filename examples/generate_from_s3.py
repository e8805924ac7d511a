"""A model of transformers from a bucket, without a directory, and what it says next.

    python generate_from_s3.py s3://models/llama/ "Once upon a time"
"""
import sys
import tempfile

import torch
import transformers

import sluice
import sluice.transformers

if len(sys.argv) != 3:
    sys.exit(__doc__)

uri, words = sys.argv[1:]
model = sluice.transformers.from_pretrained(uri, transformers.AutoModelForCausalLM)  # straight into its parameters
with tempfile.TemporaryDirectory() as place:
    sluice.pull(uri, place, include=["tokenizer*", "special_tokens_map.json", "vocab*", "merges.txt"])
    tokenizer = transformers.AutoTokenizer.from_pretrained(place)
tokens = tokenizer(words, return_tensors="pt")["input_ids"]
with torch.no_grad():
    said = model.generate(tokens, max_new_tokens=8, do_sample=False)
print("tokens:", said[0].tolist())
print(tokenizer.decode(said[0]))
