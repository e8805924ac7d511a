vcl 4.1;
# Varnish 7 as a cache of a ring, or of a rack (docs/scale.md), before a store without TLS: Varnish speaks none to a store.
# Replace @HOST@ and @PORT@; run it as
#
#     varnishd -F -a :8080 -f caches.vcl -s malloc,100G -p default_grace=0 -p workspace_backend=128k
#
# It has no slices: it keeps each range as it was asked for, which is the same on all nodes that load one spec. The key is
# X-Sluice-Version, which each range of sluice carries and which stands for object and version, and the range. What has none
# (openings, listings, tokens, other clients) is passed on and not kept. Two that ask for one range at once make one request.
backend store {
    .host = "@HOST@";
    .port = "@PORT@";
    .connect_timeout = 5s;
    .first_byte_timeout = 60s;
    .between_bytes_timeout = 60s;
}

sub vcl_recv {
    unset req.http.X-Sluice-Range;
    if (req.method != "GET" && req.method != "HEAD") {
        return (synth(403));
    }
    if (req.method != "GET" || !req.http.X-Sluice-Version || !req.http.Range) {
        return (pass);
    }
    # Else Varnish would ask for all of the object.
    set req.http.X-Sluice-Range = req.http.Range;
    unset req.http.Range;
    return (hash);
}

sub vcl_hash {
    hash_data(req.http.X-Sluice-Version);
    hash_data(req.http.X-Sluice-Range);
    return (lookup);
}

sub vcl_backend_fetch {
    if (bereq.http.X-Sluice-Range) {
        set bereq.http.Range = bereq.http.X-Sluice-Range;
        unset bereq.http.X-Sluice-Range;
    }
    unset bereq.http.Accept-Encoding;
    return (fetch);
}

sub vcl_backend_response {
    if (bereq.uncacheable || beresp.status != 206) {
        set beresp.ttl = 0s;
        set beresp.uncacheable = true;
        return (deliver);
    }
    # Varnish refuses a part that it did not ask for itself.
    set beresp.http.X-Sluice-Content-Range = beresp.http.Content-Range;
    unset beresp.http.Content-Range;
    unset beresp.http.Set-Cookie;
    unset beresp.http.Vary;
    set beresp.ttl = 24h;
    set beresp.grace = 0s;
    return (deliver);
}

sub vcl_deliver {
    if (resp.http.X-Sluice-Content-Range) {
        set resp.http.Content-Range = resp.http.X-Sluice-Content-Range;
        unset resp.http.X-Sluice-Content-Range;
    }
    return (deliver);
}
