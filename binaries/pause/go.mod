module evenkeel.dev/binaries/pause

go 1.21
