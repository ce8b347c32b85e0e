# Sets KENLM_SOURCE to a directory with KenLM's sources: the one given, or the pinned release, fetched once by pip into
# the build directory. pip itself checks the hash and refuses everything else.

set(KENLM_SOURCE "$ENV{KENLM_SOURCE}" CACHE PATH "unpacked sources of KenLM, or its .tar.gz; empty: fetch them")

function(cortext_unpack_kenlm archive directory)
    file(REMOVE_RECURSE "${directory}")
    file(ARCHIVE_EXTRACT INPUT "${archive}" DESTINATION "${directory}.new")
    file(GLOB inner LIST_DIRECTORIES true "${directory}.new/*")
    file(RENAME "${inner}" "${directory}")
    file(REMOVE_RECURSE "${directory}.new")
endfunction()

function(cortext_fetch_kenlm result)
    set(requirements "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/requirements.txt")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${requirements}")
    file(SHA256 "${requirements}" pinned)
    string(SUBSTRING "${pinned}" 0 12 pinned)
    set(directory "${CMAKE_BINARY_DIR}/kenlm-source-${pinned}")
    set(${result} "${directory}" PARENT_SCOPE)
    if(EXISTS "${directory}/lm/model.cc")
        return()
    endif()
    set(downloads "${CMAKE_BINARY_DIR}/kenlm-download")
    file(REMOVE_RECURSE "${downloads}")
    message(STATUS "Fetching the sources of KenLM")
    execute_process(
        COMMAND "${Python_EXECUTABLE}" -m pip download --quiet --disable-pip-version-check --no-deps --no-binary kenlm
                --no-build-isolation --require-hashes --requirement "${requirements}" --dest "${downloads}"
        RESULT_VARIABLE failed
        ERROR_VARIABLE message)
    file(GLOB archive "${downloads}/kenlm-*.tar.gz")
    if(failed OR NOT archive)
        message(FATAL_ERROR "cannot fetch the sources of KenLM; without a network, unpack them and set KENLM_SOURCE "
                            "to where they are\n${message}")
    endif()
    cortext_unpack_kenlm("${archive}" "${directory}")
endfunction()

if(NOT KENLM_SOURCE)
    cortext_fetch_kenlm(KENLM_DIRECTORY)
elseif(IS_DIRECTORY "${KENLM_SOURCE}")
    set(KENLM_DIRECTORY "${KENLM_SOURCE}")
else()
    set(KENLM_DIRECTORY "${CMAKE_BINARY_DIR}/kenlm-source-given")
    cortext_unpack_kenlm("${KENLM_SOURCE}" "${KENLM_DIRECTORY}")
endif()
if(NOT EXISTS "${KENLM_DIRECTORY}/lm/model.cc")
    message(FATAL_ERROR "no sources of KenLM in ${KENLM_DIRECTORY}; set KENLM_SOURCE to the directory that has lm/ and util/")
endif()
