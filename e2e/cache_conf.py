"""The nginx file of a cache, charts/sluice/files/nginx.conf, filled in for one store."""
import os
import ssl

PATH = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "charts", "sluice", "files", "nginx.conf")


def read():
    with open(PATH, encoding="utf-8") as file:
        return file.read()


def filled(text, folder, listen, block_bytes, origin, host=None):
    """text, with a cache in this folder that listens at ADDRESS:PORT; the store is at http://`origin`, and `host` names it."""
    values = {"DIR": folder, "LISTEN": listen, "SLICE": str(block_bytes), "MAX": "1g", "WORKERS": "1", "RESOLVER": "127.0.0.1",
              "CA": ssl.get_default_verify_paths().openssl_cafile, "HOST": host or "127.0.0.1 localhost", "ORIGIN": f"http://{origin}"}
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text if os.getuid() else "user root;\n" + text
