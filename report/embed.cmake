# cmake -DOUTPUT=page.cc -DPARTS="page.html;style.css;first.js;…" -P embed.cmake

set(content "#include \"page.h\"\n\nnamespace moetape::inline v0::report {\n")

# The hash is what the page's policy names the text by; it covers every byte between the tags.
function(add_text name text)
  string(SHA256 hash "${text}")
  string(APPEND content "\nconst EmbeddedText ${name} = {R\"moetape(${text})moetape\",\n  \"${hash}\"};\n")
  set(content "${content}" PARENT_SCOPE)
endfunction()

list(POP_FRONT PARTS page style)
file(READ "${page}" text)
add_text(kPage "${text}")
file(READ "${style}" text)
add_text(kStyle "${text}")
set(script "")
foreach(part IN LISTS PARTS)
  file(READ "${part}" text)
  string(APPEND script "${text}\n")
endforeach()
add_text(kScript "${script}")

file(WRITE "${OUTPUT}" "${content}\n}  // namespace moetape::inline v0::report\n")
