{{/* The spec of the benchmark Job. */}}

{{- define "sluice.benchmarkJobSpec" -}}
{{- $benchmark := .Values.benchmark -}}
{{- $many := gt (int $benchmark.nodes) 1 -}}
{{- $args := list "bench"
    (default (printf "/etc/sluice/specs/%s.yaml" $benchmark.model) $benchmark.uri)
    (printf "--to=%s" .Values.modelsPath)
    (printf "--range-bytes=%s" $benchmark.rangeBytes)
    (printf "--connections=%s" $benchmark.connections)
    (printf "--measure=%s" $benchmark.measure)
    (printf "--rounds=%d" (int $benchmark.rounds))
    (printf "--warmups=%d" (int $benchmark.warmups))
    (printf "--peers=%s" $benchmark.peers)
    "--json" -}}
{{- if $benchmark.uri -}}
{{- $args = concat $args (include "sluice.throughArgs" . | fromYamlArray) -}}
{{- end -}}
{{- if $many -}}
{{- $args = append $args (printf "--start-at=%s" $benchmark.startAt) -}}
{{- end -}}
{{- $env := list
    (dict "name" "SLUICE_NODE" "valueFrom" (dict "fieldRef" (dict "fieldPath" "spec.nodeName")))
    (dict "name" "SLUICE_POD" "valueFrom" (dict "fieldRef" (dict "fieldPath" "metadata.name"))) -}}
{{- with $benchmark.linkSpeed -}}
{{- $env = append $env (dict "name" "SLUICE_LINK_SPEED" "value" .) -}}
{{- end -}}
{{- $load := dict "root" . "containerName" "benchmark" "args" $args "extraEnv" $env
    "extraArgs" $benchmark.extraArgs "resources" $benchmark.resources -}}
{{- if $benchmark.uri -}}
{{- $load = merge $load (dict "uri" $benchmark.uri "size" $benchmark.size "name" "benchmark") -}}
{{- else -}}
{{- $load = merge $load (dict "model" $benchmark.model) -}}
{{- end -}}
{{- $pod := dict "root" . "component" "benchmark" "pod" $benchmark.pod -}}
{{- $labels := dict "app.kubernetes.io/instance" .Release.Name "app.kubernetes.io/component" "benchmark" -}}
{{- $spread := dict "maxSkew" 1 "topologyKey" "kubernetes.io/hostname" "whenUnsatisfiable" "DoNotSchedule"
    "labelSelector" (dict "matchLabels" $labels) -}}
{{- if and $many (not (get (include "sluice.podSettings" $pod | fromJson) "topologySpreadConstraints")) -}}
{{- $_ := set $pod "pod" (merge (dict "topologySpreadConstraints" (list $spread)) (deepCopy $benchmark.pod)) -}}
{{- end -}}
{{- /* A second try would measure at another time than the others. */ -}}
backoffLimit: 0
{{- if $many }}
completionMode: Indexed
parallelism: {{ int $benchmark.nodes }}
completions: {{ int $benchmark.nodes }}
{{- end }}
{{- with $benchmark.activeDeadlineSeconds }}
activeDeadlineSeconds: {{ int . }}
{{- end }}
{{- if not (kindIs "invalid" $benchmark.ttlSecondsAfterFinished) }}
ttlSecondsAfterFinished: {{ int $benchmark.ttlSecondsAfterFinished }}
{{- end }}
template:
  metadata:
    {{- include "sluice.podMetadata" $pod | nindent 4 }}
  spec:
    {{- include "sluice.podSpec" $pod | nindent 4 }}
    restartPolicy: Never
    containers:
      {{- include "sluice.initContainer" $load | nindent 6 }}
    volumes:
      {{- include "sluice.volumes" $load | nindent 6 }}
{{- end -}}
