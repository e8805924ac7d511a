"""A small S3 client of the standard library, so that what sluice signs is compared with something else.

Path style only. Bodies are hashed, since stores want x-amz-content-sha256 over plain HTTP.
"""
import datetime
import hashlib
import hmac
import http.client
import os
import urllib.parse

EMPTY = hashlib.sha256(b"").hexdigest()


def quote(text):
    return urllib.parse.quote(text.encode(), safe="/~-._")


class S3:
    def __init__(self, port, access, secret, region="us-east-1", host="127.0.0.1"):
        self.host, self.port, self.access, self.secret, self.region = host, port, access, secret, region
        self.connection = None

    @property
    def endpoint(self):
        return f"http://{self.host}:{self.port}"

    def env(self):
        """What sluice and its peers are told."""
        return {"AWS_ACCESS_KEY_ID": self.access, "AWS_SECRET_ACCESS_KEY": self.secret, "AWS_REGION": self.region,
                "AWS_ENDPOINT_URL": self.endpoint}

    def sign(self, method, path, query, payload_hash, headers):
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
        headers.update({"host": f"{self.host}:{self.port}", "x-amz-content-sha256": payload_hash, "x-amz-date": now})
        names = ";".join(sorted(headers))
        lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
        request = "\n".join((method, path, query, lines, names, payload_hash))
        scope = f"{now[:8]}/{self.region}/s3/aws4_request"
        text = "\n".join(("AWS4-HMAC-SHA256", now, scope, hashlib.sha256(request.encode()).hexdigest()))
        key = ("AWS4" + self.secret).encode()
        for part in (now[:8], self.region, "s3", "aws4_request"):
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
        headers["Authorization"] = (f"AWS4-HMAC-SHA256 Credential={self.access}/{scope}, SignedHeaders={names}, "
                                    f"Signature={signature}")
        return headers

    def request(self, method, bucket, key="", body=b"", payload_hash=None, query="", headers=None):
        """body is bytes or an open file with payload_hash given. Returns (status, body)."""
        path = quote(f"/{bucket}/{key}" if key else f"/{bucket}")
        payload_hash = payload_hash or (hashlib.sha256(body).hexdigest() if body else EMPTY)
        signed = self.sign(method, path, query, payload_hash, dict(headers or {}))
        length = len(body) if isinstance(body, bytes) else os.fstat(body.fileno()).st_size
        signed["Content-Length"] = str(length)
        for attempt in (0, 1):
            try:
                if self.connection is None:
                    self.connection = http.client.HTTPConnection(self.host, self.port, timeout=120)
                self.connection.request(method, path + ("?" + query if query else ""), body=body, headers=signed)
                answer = self.connection.getresponse()
                data = answer.read()
                if answer.will_close:
                    self.connection.close()
                    self.connection = None
                return answer.status, data
            except (http.client.HTTPException, ConnectionError):
                self.connection = None  # an idle connection was closed: once more
                if attempt or not isinstance(body, bytes):
                    raise

    def make_bucket(self, bucket):
        status, body = self.request("PUT", bucket)
        assert status in (200, 409), f"bucket {bucket}: {status} {body[:300]}"

    def put(self, bucket, key, body, headers=None):
        status, answer = self.request("PUT", bucket, key, body, headers=headers)
        assert status == 200, f"put {bucket}/{key}: {status} {answer[:300]}"

    def put_file(self, bucket, key, path, sha256):
        with open(path, "rb") as file:
            status, answer = self.request("PUT", bucket, key, file, payload_hash=sha256)
        assert status == 200, f"put {bucket}/{key}: {status} {answer[:300]}"

    def presign(self, bucket, key, seconds=3600):
        """A GET link that needs no header."""
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
        scope = f"{now[:8]}/{self.region}/s3/aws4_request"
        path = quote(f"/{bucket}/{key}")
        query = "&".join((
            "X-Amz-Algorithm=AWS4-HMAC-SHA256",
            "X-Amz-Credential=" + urllib.parse.quote(f"{self.access}/{scope}", safe=""),
            f"X-Amz-Date={now}", f"X-Amz-Expires={seconds}", "X-Amz-SignedHeaders=host"))
        request = "\n".join(("GET", path, query, f"host:{self.host}:{self.port}\n", "host", "UNSIGNED-PAYLOAD"))
        text = "\n".join(("AWS4-HMAC-SHA256", now, scope, hashlib.sha256(request.encode()).hexdigest()))
        signing = ("AWS4" + self.secret).encode()
        for part in (now[:8], self.region, "s3", "aws4_request"):
            signing = hmac.new(signing, part.encode(), hashlib.sha256).digest()
        signature = hmac.new(signing, text.encode(), hashlib.sha256).hexdigest()
        return f"{self.endpoint}{path}?{query}&X-Amz-Signature={signature}"
