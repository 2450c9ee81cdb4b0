# A Debian package of what hl_install() installs, under /usr: `./run package`.
function(hl_package)
  set(CPACK_GENERATOR DEB)
  set(CPACK_PACKAGE_NAME helios)
  set(CPACK_PACKAGE_CONTACT "The Helios developers")
  set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "memory-centric platform for training large models")
  set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
  set(CPACK_STRIP_FILES ON)
  set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
  set(CPACK_DEBIAN_PACKAGE_SECTION science)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)    # what is linked
  set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
  set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "python3, systemd") # busctl
  set(CPACK_DEBIAN_PACKAGE_SUGGESTS "python3-torch, libopenblas0-pthread")
  include(CPack)
endfunction()
