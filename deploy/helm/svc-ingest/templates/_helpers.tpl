{{- define "svc.labels" -}}
app.kubernetes.io/name: {{ .name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- end }}

{{- define "svc.image" -}}
{{ .root.Values.image.registry }}/{{ .name }}:{{ .root.Values.image.tag | default .root.Chart.AppVersion }}
{{- end }}

{{/* What every container may do: nothing that needs a privilege. */}}
{{- define "svc.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* Where agents reach the service. Without an address of its own, it is at the console's name. */}}
{{- define "svc.address" -}}
{{- .Values.address | default (printf "%s:%v" (urlParse .Values.console.baseUrl).hostname .Values.service.port) -}}
{{- end }}

{{/* Not all instances on one node, if there are several nodes. */}}
{{- define "svc.spread" -}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- . | nindent 8 }}
{{- end }}
