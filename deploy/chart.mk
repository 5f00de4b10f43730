# The chart, and the manifest that is made of it. Helm is built once and kept outside the tree.
$(HELM): # most of it is the Kubernetes client, which nothing here measures: this halves the time that the compiler takes
	GOBIN=$(@D) $(GO) install -gcflags='k8s.io/...=-N -l' -ldflags='-s -w' helm.sh/helm/v3/cmd/helm@v$(HELM_VERSION)

.PHONY: helm chart manifest
helm: $(HELM)

chart: $(HELM) ## dist/VERSION: the chart, as a package for Helm
	mkdir -p dist/$(VERSION)
	$(HELM) package deploy/chart --destination dist/$(VERSION) $(if $(filter v%,$(VERSION)),--version $(VERSION:v%=%) --app-version $(VERSION))

manifest: $(HELM) ## Write deploy/kubernetes/overlayd.yml, which is the chart with its default values
	{ cat deploy/kubernetes/head.yml; $(HELM) template overlayd deploy/chart --namespace overlayd --kube-version $(KUBE_VERSION) \
		--api-versions admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy; } > deploy/kubernetes/overlayd.yml
