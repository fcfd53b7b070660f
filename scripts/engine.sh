# One interface to docker, podman and buildah; sourced after lib.sh.
# shellcheck shell=bash

# Buildah's defaults need mounts and user namespaces that a container or virtual machine may not allow.
: "${BUILDAH_ISOLATION:=chroot}" "${STORAGE_DRIVER:=vfs}"
export BUILDAH_ISOLATION

find_engine() {
    if docker info >/dev/null 2>&1; then
        echo docker
    elif command -v podman >/dev/null; then
        echo podman
    else
        scripts/need.sh buildah
        echo buildah
    fi
}

engine() {
    case $ENGINE in
        buildah) buildah --storage-driver "$STORAGE_DRIVER" "$@" ;;
        *) "$ENGINE" "$@" ;;
    esac
}

has_image() {
    case $ENGINE in
        docker) docker image inspect "$1" ;;
        podman) podman image exists "$1" ;;
        buildah) engine inspect --type image "$1" ;;
    esac >/dev/null 2>&1
}

# The timeout is for registries that are unreachable.
pull_image() { has_image "$1" || engine_within 120 pull --quiet "$1" >/dev/null 2>&1; }

engine_within() {
    local seconds=$1; shift
    if [ "$ENGINE" = buildah ]; then set -- --storage-driver "$STORAGE_DRIVER" "$@"; fi
    timeout "$seconds" "$ENGINE" "$@"
}

# build_image TAG CONTAINERFILE CONTEXT [NAME=VALUE...]
build_image() {
    local tag=$1 file=$2 context=$3 verb=build argument arguments=()
    shift 3
    for argument in "$@"; do arguments+=(--build-arg "$argument"); done
    if [ "$ENGINE" = buildah ]; then verb=bud; fi
    engine "$verb" ${arguments[@]+"${arguments[@]}"} --tag "$tag" --file "$file" "$context" >&2
}

# run_image TAG COMMAND...
run_image() {
    local tag=$1 container status=0
    shift
    if [ "$ENGINE" != buildah ]; then
        engine run --rm --entrypoint "$1" "$tag" "${@:2}"
        return
    fi
    container=$(engine from --pull-never "$tag")
    engine run "$container" -- "$@" || status=$?
    engine rm "$container" >/dev/null
    return "$status"
}

# image_digest TAG
image_digest() {
    case $ENGINE in
        buildah) engine inspect --type image --format '{{.FromImageID}}' "$1" ;;
        *) engine image inspect --format '{{.Id}}' "$1" ;;
    esac
}

# save_image TAG FILE
save_image() {
    case $ENGINE in
        buildah) engine push --quiet "$1" "docker-archive:$2:$1" >&2 ;;
        *) engine save --output "$2" "$1" >&2 ;;
    esac
}

# push_image TAG TARGET
push_image() {
    case $ENGINE in
        docker) docker tag "$1" "$2" >&2 && docker push "$2" >&2 ;;
        *) engine push "$1" "docker://$2" >&2 ;;
    esac
}

# tag_image TAG SECOND_TAG
tag_image() { engine tag "$1" "$2"; }

remove_image() { engine rmi "$1" >/dev/null; }

# Keeps the newest images that build-image.sh tags by content, because another checkout may use one. Each has half a
# gigabyte or more. All engines list the newest first.
readonly IMAGES_KEPT=3
forget_old_images() {
    local tag
    engine images | awk -v name="$1" '$1 == name { print $1 ":" $2 }' | { grep -E -- '-[0-9a-f]{12}$' || true; } |
        tail -n "+$((IMAGES_KEPT + 1))" | while read -r tag; do
            remove_image "$tag" || say "$tag is in use; keeping it"
        done
}
