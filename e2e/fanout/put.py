"""put.py HOST PORT ACCESS SECRET BUCKET FILE…: put files into a bucket under their own names."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from s3client import S3  # noqa: E402


def main():
    host, port, access, secret, bucket, *files = sys.argv[1:]
    store = S3(int(port), access, secret, host=host)
    for path in files:
        with open(path, "rb") as file:
            status, body = store.request("PUT", bucket, os.path.basename(path), file.read())
        assert status == 200, (status, body)


main()
