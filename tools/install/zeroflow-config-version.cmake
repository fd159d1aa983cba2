# Another minor version may change the interface as long as the major one is 0.
set(PACKAGE_VERSION "@VERSION@")
string(REGEX MATCH "^[0-9]+\\.[0-9]+" zeroflow_series "${PACKAGE_VERSION}")
if(PACKAGE_FIND_VERSION VERSION_EQUAL PACKAGE_VERSION)
    set(PACKAGE_VERSION_EXACT TRUE)
endif()
if(PACKAGE_FIND_VERSION VERSION_LESS_EQUAL PACKAGE_VERSION
        AND PACKAGE_FIND_VERSION VERSION_GREATER_EQUAL zeroflow_series)
    set(PACKAGE_VERSION_COMPATIBLE TRUE)
endif()
unset(zeroflow_series)
