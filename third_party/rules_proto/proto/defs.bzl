"""The native rules under the names that @bazel_tools asks @rules_proto for."""

proto_lang_toolchain = native.proto_lang_toolchain
proto_library = native.proto_library
