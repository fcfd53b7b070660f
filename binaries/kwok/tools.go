//go:build tools

// Package tools names the programs that scripts/build-binaries.sh builds from the module pinned here.
package tools

import (
	_ "sigs.k8s.io/kwok/cmd/kwok"
)
