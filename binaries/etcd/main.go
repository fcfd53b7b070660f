// Package main builds the etcd server from its Go module, for machines that have no recent etcd of their own.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
