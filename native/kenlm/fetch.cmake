# Sets KENLM_DIRECTORY to a copy of KenLM's sources in the build directory, changed by bounds.cmake. They come from
# KENLM_SOURCE if that is set, else from the pinned release, fetched once by pip, which checks the hash.

set(KENLM_SOURCE "$ENV{KENLM_SOURCE}" CACHE PATH "unpacked sources of KenLM, or its .tar.gz; empty: fetch them")
set(requirements "${CMAKE_CURRENT_LIST_DIR}/requirements.txt")
set(changes "${CMAKE_CURRENT_LIST_DIR}/bounds.cmake")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${requirements}" "${changes}")

function(cortext_fetch_kenlm result)
    file(SHA256 "${requirements}" pinned)
    string(SUBSTRING "${pinned}" 0 12 pinned)
    set(downloads "${CMAKE_BINARY_DIR}/kenlm-${pinned}")
    file(GLOB archive "${downloads}/kenlm-*.tar.gz")
    if(NOT archive)
        message(STATUS "Fetching the sources of KenLM")
        execute_process(
            COMMAND "${Python_EXECUTABLE}" -m pip download --quiet --disable-pip-version-check --no-deps
                    --no-binary kenlm --no-build-isolation --require-hashes --requirement "${requirements}"
                    --dest "${downloads}"
            RESULT_VARIABLE failed
            ERROR_VARIABLE message)
        file(GLOB archive "${downloads}/kenlm-*.tar.gz")
        if(failed OR NOT archive)
            message(FATAL_ERROR "cannot fetch the sources of KenLM; where there is no network, unpack them and set "
                                "KENLM_SOURCE to the directory\n${message}")
        endif()
    endif()
    set(${result} "${archive}" PARENT_SCOPE)
endfunction()

if(KENLM_SOURCE)
    set(source "${KENLM_SOURCE}")
else()
    cortext_fetch_kenlm(source)
endif()
file(SHA256 "${changes}" key)
string(SHA256 key "${source} ${key}")
string(SUBSTRING "${key}" 0 12 key)
set(KENLM_DIRECTORY "${CMAKE_BINARY_DIR}/kenlm-source-${key}")
if(NOT EXISTS "${KENLM_DIRECTORY}/complete")
    file(REMOVE_RECURSE "${KENLM_DIRECTORY}" "${KENLM_DIRECTORY}.new")
    if(IS_DIRECTORY "${source}")
        file(COPY "${source}/" DESTINATION "${KENLM_DIRECTORY}")
    else()
        file(ARCHIVE_EXTRACT INPUT "${source}" DESTINATION "${KENLM_DIRECTORY}.new")
        file(GLOB inner LIST_DIRECTORIES true "${KENLM_DIRECTORY}.new/*")
        file(RENAME "${inner}" "${KENLM_DIRECTORY}")
        file(REMOVE_RECURSE "${KENLM_DIRECTORY}.new")
    endif()
    if(NOT EXISTS "${KENLM_DIRECTORY}/lm/model.cc")
        message(FATAL_ERROR "no sources of KenLM in ${source}; lm/ and util/ are expected there")
    endif()
    include("${changes}")
    file(TOUCH "${KENLM_DIRECTORY}/complete")
endif()
