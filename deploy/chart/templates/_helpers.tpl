{{- define "overlayd.labels" -}}
app.kubernetes.io/name: overlayd
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "overlayd.selector" -}}
app.kubernetes.io/name: overlayd
{{- end }}

{{- define "overlayd.image" -}}
{{ .Values.image | default (printf "ghcr.io/overlayd/overlayd:%s" .Chart.AppVersion) }}
{{- end }}

{{- /* "true" if the API server is to get the policy. */ -}}
{{- define "overlayd.policy" -}}
{{- if eq (toString .Values.admissionPolicy) "auto" -}}
{{- if and (.Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy") (semverCompare ">=1.32.0-0" .Capabilities.KubeVersion.Version) }}true{{ end -}}
{{- else if eq (toString .Values.admissionPolicy) "true" }}true{{ end -}}
{{- end }}

{{- /* The network config, in flannel's form. Traffic rules are always those of nftables: the image has no iptables. */ -}}
{{- define "overlayd.netConf" -}}
{{- $config := dict -}}
{{- with .Values.podCidr }}{{ $_ := set $config "Network" . }}{{ else }}{{ $_ := set $config "EnableIPv4" false }}{{ end -}}
{{- with .Values.podCidrv6 }}{{ $_ := set $config "IPv6Network" . }}{{ $_ := set $config "EnableIPv6" true }}{{ end -}}
{{- $_ := set $config "EnableNFTables" true -}}
{{- $backend := dict "Type" .Values.flannel.backend -}}
{{- if eq .Values.flannel.backend "vxlan" -}}
{{- range $value, $key := dict "backendPort" "Port" "vni" "VNI" "mtu" "MTU" "GBP" "GBP" "directRouting" "DirectRouting" -}}
{{- with index $.Values.flannel $value }}{{ if kindIs "float64" . }}{{ $_ := set $backend $key (int .) }}{{ else }}{{ $_ := set $backend $key . }}{{ end }}{{ end -}}
{{- end -}}
{{- end -}}
{{- $_ := set $config "Backend" $backend -}}
{{ toPrettyJson $config }}
{{- end }}

{{- /* What the keys of the annotations begin with, as flannel makes it of the flag. */ -}}
{{- define "overlayd.annotationPrefix" -}}
{{- $prefix := "flannel.alpha.coreos.com" -}}
{{- range .Values.flannel.args }}{{ if hasPrefix "--kube-annotation-prefix=" . }}{{ $prefix = trimPrefix "--kube-annotation-prefix=" . }}{{ end }}{{ end -}}
{{- if not (contains "/" $prefix) }}{{ $prefix }}/{{ else if hasSuffix "/" $prefix }}{{ $prefix }}{{ else if hasSuffix "-" $prefix }}{{ $prefix }}{{ else }}{{ $prefix }}-{{ end -}}
{{- end }}

{{- /* The port for Prometheus, empty if no port is set. */ -}}
{{- define "overlayd.metricsPort" -}}
{{- if .Values.metrics.port }}{{ int .Values.metrics.port }}{{ else if .Values.podMonitor.enabled }}9799{{ end -}}
{{- end }}
