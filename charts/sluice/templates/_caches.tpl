{{/*
Caches between nodes and stores: what they are called, how large they are, and how loads find them. docs/scale.md.
*/}}

{{- define "sluice.cachesName" -}}
{{- printf "%s-caches" (include "sluice.fullname" .) -}}
{{- end -}}

{{/* dict "root" $ "zone" TEXT: their URL; TEXT stands for the zone where each has its own. */}}
{{- define "sluice.cachesUrl" -}}
{{- $zone := ternary (printf "-%s" .zone) "" (not (empty .root.Values.caches.zones)) -}}
{{- printf "http://%s%s.%s.svc:%d" (include "sluice.cachesName" .root) $zone (include "sluice.namespace" .root) (int .root.Values.caches.port) -}}
{{- end -}}

{{/* `through` of a spec or of a node's config, as JSON. */}}
{{- define "sluice.through" -}}
{{- $url := include "sluice.cachesUrl" (dict "root" . "zone" "${SLUICE_ZONE}") -}}
{{- dict "caches" (list $url) "unverified" .Values.caches.unverified | toJson -}}
{{- end -}}

{{/* dict "root" $ "source" MAP: the source with caches, as JSON, unless it says itself which it has. */}}
{{- define "sluice.throughSource" -}}
{{- $source := deepCopy .source -}}
{{- $own := get $source "through" -}}
{{- if and .root.Values.caches.enabled (or (not (hasKey $source "through")) (and (kindIs "map" $own) (not (hasKey $own "caches")))) -}}
{{- $_ := set $source "through" (merge (default dict $own) (include "sluice.through" .root | fromJson)) -}}
{{- end -}}
{{- toJson $source -}}
{{- end -}}

{{/* Flags that say the same, for what has no spec. */}}
{{- define "sluice.throughArgs" -}}
{{- if .Values.caches.enabled -}}
- {{ printf "--through=%s" (include "sluice.cachesUrl" (dict "root" . "zone" "$(SLUICE_ZONE)")) | quote }}
- {{ printf "--set=source.through.unverified=%s" .Values.caches.unverified | quote }}
{{- end -}}
{{- end -}}

{{/* The variable that both name. */}}
{{- define "sluice.zoneEnvironment" -}}
{{- if and .Values.caches.enabled .Values.caches.zones -}}
- name: SLUICE_ZONE
  valueFrom:
    fieldRef:
      fieldPath: metadata.labels['topology.kubernetes.io/zone']
{{- end -}}
{{- end -}}

{{/* Bytes that all of them are to keep; 0: nobody knows. */}}
{{- define "sluice.cachesSize" -}}
{{- if .Values.caches.size -}}
{{- include "sluice.bytes" .Values.caches.size -}}
{{- else -}}
{{- include "sluice.sizeOf" (dict "root" . "names" (keys .Values.models)) -}}
{{- end -}}
{{- end -}}

{{/* MiB that each keeps: 1.2 times its part, since parts differ and others' come to it when their cache is gone. */}}
{{- define "sluice.cacheMebibytes" -}}
{{- divf (mulf (include "sluice.cachesSize" . | float64) 1.2) (mulf (float64 .Values.caches.nodes) 1048576.0) | ceil | int64 -}}
{{- end -}}

{{/* MiB of its volume: a gibibyte more, of slices on their way, and until nginx has dropped what is too much. */}}
{{- define "sluice.cacheVolume" -}}
{{- add (include "sluice.cacheMebibytes" . | int64) 1024 -}}
{{- end -}}

{{/* MiB of memory: 256 of nginx, or 1024 where the kernel keeps pages of a disk, and the volume if it is memory. */}}
{{- define "sluice.cacheMemory" -}}
{{- if .Values.caches.medium -}}
{{- add (include "sluice.cacheVolume" . | int64) 256 -}}
{{- else -}}
1024
{{- end -}}
{{- end -}}

{{- define "sluice.cacheResources" -}}
{{- $resources := deepCopy .Values.caches.resources -}}
{{- $memory := printf "%sMi" (include "sluice.cacheMemory" .) -}}
{{- if not (dig "limits" "memory" "" $resources) -}}
{{- $_ := set $resources "limits" (merge (dict "memory" $memory) (default dict $resources.limits)) -}}
{{- end -}}
{{- $more := dict "memory" $resources.limits.memory -}}
{{- if not .Values.caches.medium -}}
{{- $_ := set $more "ephemeral-storage" (printf "%sMi" (include "sluice.cacheVolume" .)) -}}
{{- end -}}
{{- $_ := set $resources "requests" (merge (default dict $resources.requests) $more) -}}
{{- toYaml $resources -}}
{{- end -}}

{{/* files/nginx.conf, with a server for each store. */}}
{{- define "sluice.nginx" -}}
{{- $caches := .Values.caches -}}
{{- $listen := printf "%s%d" (ternary "[::]:" "" $caches.ipv6) (int $caches.port) -}}
{{- $parts := splitList "    # one store\n" (.Files.Get "files/nginx.conf") -}}
{{- $rest := splitList "    # end of stores\n" (last $parts) -}}
{{- first $parts | replace "@LISTEN@" (printf "%s%s" $listen (ternary " ipv6only=off" "" $caches.ipv6)) | replace "@DIR@" "/cache" | replace "@WORKERS@" "4"
    | replace "@MAX@" (printf "%sm" (include "sluice.cacheMebibytes" .)) | replace "@SLICE@" "8m"
    | replace "@RESOLVER@" (printf "%s%s" $caches.resolver (ternary "" " ipv6=off" $caches.ipv6))
    | replace "@CA@" (ternary (printf "/etc/sluice/ca/%s" .Values.caBundle.key) "/etc/ssl/certs/ca-certificates.crt" (include "sluice.hasCa" . | empty | not)) -}}
{{- range $caches.stores -}}
{{- $tls := ne (toString .tls) "false" -}}
{{- $origin := printf "%s://%s:%d" (ternary "https" "http" $tls) (default "$host" .address) (int (default (ternary 443 80 $tls) .port)) -}}
{{- first $rest | replace "@LISTEN@" $listen | replace "@HOST@" .host | replace "@ORIGIN@" $origin -}}
{{- end -}}
{{- last $rest -}}
{{- end -}}

{{- define "sluice.hasCa" -}}
{{- if or .Values.caBundle.configMap .Values.caBundle.secret -}}true{{- end -}}
{{- end -}}

{{- define "sluice.validateCaches" -}}
{{- $wrong := list -}}
{{- $caches := .Values.caches -}}
{{- if $caches.enabled -}}
{{- if not $caches.stores -}}
{{- $wrong = append $wrong "caches.stores: what do caches fetch from? Name the hosts, as in [{host: s3.eu-west-1.amazonaws.com}]" -}}
{{- end -}}
{{- $hosts := list -}}
{{- range $i, $store := $caches.stores -}}
{{- if has $store.host $hosts -}}
{{- $wrong = append $wrong (printf "caches.stores: '%s' is there twice: make one entry of them" $store.host) -}}
{{- end -}}
{{- $hosts = append $hosts $store.host -}}
{{- if and (not $store.address) (or (not (contains "." $store.host)) (hasSuffix ".svc" $store.host)) -}}
{{- $wrong = append $wrong (printf "caches.stores[%d]: nginx knows no search domains, so it does not find '%s': give its whole name as address, as in minio.storage.svc.cluster.local" $i $store.host) -}}
{{- end -}}
{{- end -}}
{{- if not (int $caches.nodes) -}}
{{- $wrong = append $wrong "caches.nodes: on how many nodes do caches run? Each keeps its part of the models: set it, 1 for one cache that keeps all" -}}
{{- end -}}
{{- if not (include "sluice.cachesSize" . | int64) -}}
{{- $wrong = append $wrong "caches.size: how much do models take that caches are to keep? Set it, as in 300Gi, or the size of each of models" -}}
{{- end -}}
{{- if and (not $wrong) $caches.medium (dig "limits" "memory" "" $caches.resources) -}}
{{- if lt (include "sluice.bytes" $caches.resources.limits.memory | int64) (mul (include "sluice.cacheMemory" . | int64) 1048576) -}}
{{- $wrong = append $wrong (printf "caches.resources.limits.memory: %v cannot hold the cache, which is memory, and nginx: set at least %sMi, leave it out, or set caches.medium to \"\"" $caches.resources.limits.memory (include "sluice.cacheMemory" .)) -}}
{{- end -}}
{{- end -}}
{{- $wrong = concat $wrong (include "sluice.validateZones" . | fromJsonArray) -}}
{{- end -}}
{{- toJson $wrong -}}
{{- end -}}

{{- define "sluice.validateZones" -}}
{{- $wrong := list -}}
{{- $name := include "sluice.cachesName" . -}}
{{- if and .Values.caches.zones (semverCompare "<1.35.0-0" .Capabilities.KubeVersion.Version) -}}
{{- $wrong = append $wrong (printf "caches.zones: pods of Kubernetes %s do not know their zone: upgrade to 1.35, or install one release for each zone, with pod.nodeSelector" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- range .Values.caches.zones -}}
{{- if gt (len (printf "%s-%s" $name .)) 63 -}}
{{- $wrong = append $wrong (printf "caches.zones: the Service %s-%s would have a name of more than 63 characters: set a shorter fullnameOverride" $name .) -}}
{{- end -}}
{{- end -}}
{{- toJson $wrong -}}
{{- end -}}
