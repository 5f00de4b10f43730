{{- define "overlayd.labels" -}}
app.kubernetes.io/name: overlayd
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "overlayd.selector" -}}
app.kubernetes.io/name: overlayd
{{- end }}

{{- /* Refuses values that fit no cluster together. */ -}}
{{- define "overlayd.check" -}}
{{- if not (or .Values.podCidr .Values.podCidrv6) }}{{ fail "podCidr and podCidrv6 are both empty: give the pod network of the cluster" }}{{ end -}}
{{- $metrics := include "overlayd.metricsPort" . -}}
{{- if and $metrics (eq $metrics (toString (int (.Values.flannel.healthz).port))) }}{{ fail (printf "metrics.port %s is flannel.healthz.port too: give them different ports" $metrics) }}{{ end -}}
{{- $ours := dict -}}
{{- if (.Values.flannel.healthz).port }}{{ $ours = dict "healthz-ip" "flannel.healthz.port, which the probes ask" "healthz-port" "flannel.healthz.port, which the probes ask" }}{{ end -}}
{{- if (.Values.podMonitor).enabled }}{{ $ours = merge $ours (dict "metrics-ip" "metrics.port, which the PodMonitor reads" "metrics-port" "metrics.port, which the PodMonitor reads") }}{{ end -}}
{{- range .Values.flannel.args }}{{ $flag := regexReplaceAll "^--?|=.*" . "" }}{{ if and (hasPrefix "-" .) (hasKey $ours $flag) }}{{ fail (printf "flannel.args: --%s is made of %s: leave it out" $flag (get $ours $flag)) }}{{ end }}{{ end -}}
{{- if and (eq .Values.dataplane "userspace") (not .Values.tun) }}{{ fail "dataplane userspace needs /dev/net/tun: leave out tun=false, or give another dataplane" }}{{ end -}}
{{- $labels := list "app.kubernetes.io/name" "app.kubernetes.io/instance" -}}
{{- $handlers := list "httpGet" "exec" "tcpSocket" "grpc" -}}
{{- range list
  (list "podLabels" .Values.podLabels $labels) (list "podMonitor.labels" (.Values.podMonitor).labels $labels)
  (list "podAnnotations" .Values.podAnnotations (list "kubectl.kubernetes.io/default-container" "checksum/cni-conf"))
  (list "flannel.healthz.livenessProbe" (.Values.flannel.healthz).livenessProbe $handlers) (list "flannel.healthz.readinessProbe" (.Values.flannel.healthz).readinessProbe $handlers) -}}
{{- $value := index . 0 }}{{ $has := index . 1 | default dict -}}
{{- range $key := index . 2 }}{{ if hasKey $has $key }}{{ fail (printf "%s: %s is the chart's: leave it out" $value $key) }}{{ end }}{{ end -}}
{{- end -}}
{{- if not .Values.flannel.skipCNIConfigInstallation -}}
{{- $conf := fromJson (.Values.flannel.cniConf | default "") -}}
{{- if not (kindIs "slice" $conf.plugins) }}{{ fail (printf "flannel.cniConf %q: want a list of CNI plugins in JSON, with the key plugins: %s" (.Values.flannel.cniConf | default "") ($conf.Error | default "it has none")) }}{{ end -}}
{{- end -}}
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

{{- /* The value of a flag among args, as the daemon takes it: that of the last one, with one dash or two, behind = or as a word of its own. */ -}}
{{- define "overlayd.flag" -}}
{{- $name := .name }}{{ $value := "" }}{{ $isNext := false -}}
{{- range .args -}}
{{- if $isNext }}{{ $value = . }}{{ $isNext = false }}{{ else if regexMatch (printf "^--?%s=" $name) . }}{{ $value = (splitn "=" 2 .)._1 }}{{ else }}{{ $isNext = regexMatch (printf "^--?%s$" $name) . }}{{ end -}}
{{- end -}}
{{ $value }}
{{- end }}

{{- /* What the keys of the annotations begin with, as flannel makes it of the flag. */ -}}
{{- define "overlayd.annotationPrefix" -}}
{{- $prefix := include "overlayd.flag" (dict "name" "kube-annotation-prefix" "args" .Values.flannel.args) | default "flannel.alpha.coreos.com" -}}
{{- if not (contains "/" $prefix) }}{{ $prefix }}/{{ else if hasSuffix "/" $prefix }}{{ $prefix }}{{ else if hasSuffix "-" $prefix }}{{ $prefix }}{{ else }}{{ $prefix }}-{{ end -}}
{{- end }}

{{- /* The port for Prometheus, empty if no port is set. */ -}}
{{- define "overlayd.metricsPort" -}}
{{- if (.Values.metrics).port }}{{ int (.Values.metrics).port }}{{ else if (.Values.podMonitor).enabled }}9799{{ end -}}
{{- end }}
