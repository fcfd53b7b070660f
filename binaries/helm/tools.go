//go:build tools

// Package tools names the programs that scripts/build-binaries.sh builds from the module pinned here.
package tools

import (
	_ "helm.sh/helm/v3/cmd/helm"
)
