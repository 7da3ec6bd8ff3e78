//! Functions of the C library that a test replaces in the agent.

// Each test file uses a part of it.
#![allow(dead_code)]

use std::path::Path;

/// The wall clock plus as many seconds as a file says.
pub const OTHER_CLOCK: &str = "
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t id, struct timespec *now) {
    int result = syscall(SYS_clock_gettime, id, now);
    if (result == 0 && id == CLOCK_REALTIME) {
        int error = errno;
        FILE *file = fopen(getenv(\"CLOCK_OFFSET\"), \"r\");
        long offset = 0;
        if (file) {
            if (fscanf(file, \"%ld\", &offset) != 1) offset = 0;
            fclose(file);
        }
        now->tv_sec += offset;
        errno = error;
    }
    return result;
}
";

/// Compiles a library that takes the place of functions of the C library.
pub fn preloaded(directory: &Path, source: &str) -> String {
    let at = |name: &str| directory.join(name).display().to_string();
    std::fs::write(at("preloaded.c"), source).unwrap();
    let compiled = std::process::Command::new("cc")
        .args(["-shared", "-fPIC", "-o", &at("preloaded.so"), &at("preloaded.c")])
        .status();
    assert!(compiled.expect("cc is needed").success());
    at("preloaded.so")
}
