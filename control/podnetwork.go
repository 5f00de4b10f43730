package control

import (
	"encoding/json"
	"fmt"
)

// ParsePodNetwork is ParseNetwork for a store whose subnets others give out, of whatever
// length, as Kubernetes does podCIDRs. The keys that say what may be leased (SubnetLen,
// SubnetMin, SubnetMax and their IPv6 forms) are not looked at, as flannel does not in
// Kubernetes mode, and their fields are zero: any subnet inside the network is Compatible.
func ParsePodNetwork(text []byte) (Network, error) {
	n, err := parseNetwork(text, true)
	if err != nil {
		return Network{}, &NetworkError{Err: err}
	}
	return n, nil
}

// ParseVTEPData reads the BackendData of one vxlan VTEP; null means that there is no VTEP. Errors begin with
// field and have the value.
func ParseVTEPData(field, text string) (VTEPData, error) {
	if !json.Valid([]byte(text)) {
		return VTEPData{}, fmt.Errorf("%s %.64q is not JSON", field, text)
	}
	return parseVTEP(field, []byte(text))
}
