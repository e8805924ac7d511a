{{/* What loaders and caches may reach, as rules of a NetworkPolicy: DNS and the stores. */}}
{{- define "sluice.egress" -}}
{{- $egress := .Values.networkPolicy.egress -}}
# DNS, wherever the cluster has it.
- ports:
    - port: 53
      protocol: UDP
    - port: 53
      protocol: TCP
{{- range $egress.stores }}
- to:
    {{- toYaml .to | nindent 4 }}
  ports:
    {{- range default (list 443) .ports }}
    - port: {{ int . }}
      protocol: TCP
    {{- end }}
{{- end }}
{{- if $egress.metadata }}
- to:
    - ipBlock:
        cidr: 169.254.169.254/32
    # Container credentials: ECS tasks, EKS Pod Identity.
    - ipBlock:
        cidr: 169.254.170.2/32
    - ipBlock:
        cidr: 169.254.170.23/32
  ports:
    - port: 80
      protocol: TCP
{{- end }}
{{- with $egress.extra }}
{{- toYaml . | nindent 0 }}
{{- end }}
{{- end -}}
